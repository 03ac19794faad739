"""What came out of a step, read off what ``update_from_output()`` returns."""

from collections.abc import Callable, Mapping
from typing import Any

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.reader import Reader, Vllm


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
        self._graph = Reader("CUDAGraphStat", names.GRAPH, missing)
        self._drafts = Reader("SpecDecodingStats", names.DRAFTS, missing)

    def of(
        self, by_front_end: Mapping[int, Vllm], members: dict[str, int]
    ) -> tuple[list[int], dict[str, Any]]:
        """Tokens by member, and the fields of a step that vLLM's statistics fill."""
        ids: list[str] = []
        tokens: list[int] = []
        stats = None
        for part in by_front_end.values():
            batch, its_stats = self._parts.read(part)
            ids += map(self._id.read, batch)
            tokens += map(len, map(self._tokens.read, batch))
            stats = its_stats or stats
        return _in_order(members, ids, tokens), self._statistics(stats)

    def _statistics(self, stats: Vllm) -> dict[str, Any]:
        """Nothing under ``--disable-log-stats``."""
        if stats is None:
            return {}
        queries, hits, graph, drafts = self._stats.read(stats)
        paddings, mode = (None, None) if graph is None else self._graph.read(graph)
        drafted = (None, None) if drafts is None else self._drafts.read(drafts)
        return {
            "prefix_queries": queries,
            "prefix_hits": hits,
            "padded_tokens": paddings,
            "graph_mode": mode,
            "drafted_tokens": drafted[0],
            "accepted_tokens": drafted[1],
        }


def _in_order(members: dict[str, int], ids: list[str], tokens: list[int]) -> list[int]:
    """As the members stand; several front ends' outputs come one after the other's."""
    if ids == list(members):
        return tokens
    came = dict(zip(ids, tokens, strict=True))
    return [came.get(request_id, 0) for request_id in members]
