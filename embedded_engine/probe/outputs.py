"""What came out of a step, read off what ``update_from_output()`` returns."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.reader import Reader, Vllm


class Produced(NamedTuple):
    """Who got how many tokens, side by side, and the statistics vLLM made."""

    request_ids: list[str]
    tokens: list[int]
    prefix_queries: int | None
    prefix_hits: int | None
    graph: Vllm | None
    drafts: Vllm | None


class Outputs:
    """Reads them without a Python loop over the batch.

    The prefix cache's numbers are those vLLM returns: asking its getters for them
    would take them away from vLLM's own statistics.
    """

    def __init__(self, missing: Callable[[str], None]) -> None:
        self._parts = Reader("EngineCoreOutputs", names.OUTPUTS, missing)
        self._id = Reader("EngineCoreOutput", names.OUTPUT_ID, missing)
        self._tokens = Reader("EngineCoreOutput", names.OUTPUT_TOKENS, missing)
        self._stats = Reader("SchedulerStats", names.STATS, missing)

    def of(self, by_client: Mapping[int, Vllm]) -> Produced:
        """One front end's outputs after the other's."""
        ids: list[str] = []
        tokens: list[int] = []
        stats: tuple[int | None, int | None, Vllm, Vllm] = (None, None, None, None)
        for part in by_client.values():
            outputs, returned = self._parts.read(part)
            ids += map(self._id.read, outputs)
            tokens += map(len, map(self._tokens.read, outputs))
            if returned is not None:
                stats = self._stats.read(returned)
        return Produced(ids, tokens, *stats)
