"""What a Model is made of, and how all of it is saved and restored."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from collectors.readings import (
    GpuInfo,
    Note,
)
from inferwatch.metrics.engine.cost import Ledger
from inferwatch.metrics.engine.engines import Engines
from inferwatch.metrics.engine.latencies import Latencies
from inferwatch.metrics.engine.lives import Lives
from inferwatch.metrics.engine.outcomes import Outcomes
from inferwatch.metrics.engine.requests import Requests
from inferwatch.metrics.engine.steps import Steps
from inferwatch.metrics.engine.verdict import Observer
from inferwatch.metrics.load.client import Client
from inferwatch.metrics.saving.saved import (
    BlocksOf,
    Parts,
    SavedModel,
    SavedState,
    WrittenParts,
)
from inferwatch.metrics.series.count_table import Owed
from inferwatch.metrics.series.history import History
from inferwatch.metrics.series.recent import SavedRows
from inferwatch.metrics.series.samples import MICROSECOND, Samples
from inferwatch.metrics.series.tallies import Tallies

MOST_NOTES = 200
MOST_GPUS = 100
TALLIES = {"steps", "outcomes", "client", "objectives"}
CELLS = {"prompt_tokens": 1}


def cell_of(name: str) -> int | None:
    """How wide the cells are in which some rows are counted; None: they are not."""
    return None if name in TALLIES else CELLS.get(name, MICROSECOND)


class Pieces:
    """One of each."""

    def __init__(self) -> None:
        self._history = History()
        self._latencies = Latencies(self._history)
        self._outcomes = Outcomes()
        self._requests = Requests()
        self._lives = Lives(self._requests, self._latencies, self._outcomes)
        self._engines = Engines()
        self._steps = Steps()
        self._client = Client()
        self._cost = Ledger()
        self._observer = Observer(self._engines, self._requests)
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._gpus: dict[str | None, GpuInfo] = {}
        """By their ids; or why there is none."""
        self._last_token_ns: int | None = None
        self._began_ns: int | None = None

    def saved(self) -> SavedModel:
        """Everything, to be kept; as cheap as a snapshot."""
        parts, samples, tallies = Parts(), self._samples(), self._tallies()
        rows = {name: each.rows for name, each in (samples | tallies).items()}
        state = SavedState(
            rows={name: each.saved() for name, each in rows.items()},
            tallies={name: each.saved() for name, each in tallies.items()},
            history=self._history.saved(parts),
            failed=self._outcomes.saved(parts),
            requests=self._requests.saved(parts),
            passing=parts.passing,
            engines=self._engines.saved(),
            client=self._client.saved(),
            cost=self._cost.saved(),
            observer=self._observer.saved(),
            notes=list(self._notes),
            gpus=list(self._gpus.values()),
            last_token_ns=self._last_token_ns,
            began_ns=self._began_ns,
        )
        return SavedModel(
            state=msgspec.msgpack.encode(state),
            parts=parts.lasting,
            blocks={name: each.blocks for name, each in rows.items()},
        )

    def restore(
        self,
        state: bytes,
        parts: Sequence[bytes],
        blocks_of: BlocksOf,
        owed_of: Callable[[str, SavedRows], Owed],
    ) -> None:
        """Be as it was saved; only for a fresh one.

        Raises:
            msgspec.MsgspecError: it is something else.
        """
        saved = msgspec.msgpack.decode(state, type=SavedState)
        written = WrittenParts(parts, saved.passing)
        for name, samples in self._samples().items():
            rows = saved.rows[name]
            samples.restore(rows, blocks_of(name, rows), owed_of(name, rows))
        for name, tallies in self._tallies().items():
            rows = saved.rows[name]
            tallies.restore(saved.tallies[name], rows, blocks_of(name, rows))
        self._history.restore(saved.history, written)
        self._outcomes.restore(saved.failed, written)
        self._requests.restore(saved.requests, written)
        self._engines.restore(saved.engines)
        self._client.restore(saved.client)
        self._cost.restore(saved.cost)
        self._observer.restore(saved.observer)
        self._notes.extend(saved.notes)
        self._gpus = {gpu.uuid: gpu for gpu in saved.gpus}
        self._last_token_ns, self._began_ns = saved.last_token_ns, saved.began_ns

    def release(self) -> None:
        """Nobody needs it any more: free its memory now, not when cycles are sought."""
        pieces: dict[str, Samples | Tallies] = {**self._samples(), **self._tallies()}
        for each in pieces.values():
            each.rows.release()
        self._lives.release()

    def _samples(self) -> dict[str, Samples]:
        """All there are, by names that stay."""
        return {
            "step_s": self._steps.step_durations,
            "prompt_tokens": self._outcomes.prompts,
            **self._latencies.samples,
            **{f"client_{name}": s for name, s in self._client.samples.items()},
        }

    def _tallies(self) -> dict[str, Tallies]:
        return {
            "steps": self._steps.tallies,
            "outcomes": self._outcomes.tallies,
            "client": self._client.tallies,
            "objectives": self._client.objectives,
        }
