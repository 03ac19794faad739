"""The Model: readings are folded in, snapshots are taken out."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from collectors.readings import (
    AnyReading,
    ClientSample,
    Endpoint,
    EngineInfo,
    GpuInfo,
    HostSample,
    LoadEvent,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Totals,
)
from inferwatch.metrics.engine.flow import Seen, flow, kv_state
from inferwatch.metrics.engine.steps import step_totals
from inferwatch.metrics.engine.work import current_work
from inferwatch.metrics.load.book import ABORTED
from inferwatch.metrics.pieces import MOST_GPUS, Pieces
from inferwatch.metrics.saving.saved import (
    BlocksOf,
)
from inferwatch.metrics.series.count_table import Owed
from inferwatch.metrics.series.curve import Grid
from inferwatch.metrics.series.recent import SavedRows
from inferwatch.metrics.series.timeline import timeline
from inferwatch.metrics.snapshot import Latency, Snapshot, Window


class Model(Pieces):
    """All arithmetic between readings and screens; it has no clock.

    The same readings in the same order give equal snapshots at equal ``now_ns``, no
    matter which snapshots were taken before. Memory is bounded however long it runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fold: dict[type, Callable[[Any], None]] = {
            Step: self._step,
            RequestEvent: self._event,
            EngineInfo: self._info,
            Endpoint: self._endpoint,
            Totals: self._totals,
            Note: self._note,
            RequestRecord: self._record,
            TokenTimes: self._client.tokens,
            LoadEvent: self._client.event,
            ClientSample: self._client.sample,
            HostSample: self._cost.host,
            GpuInfo: self._gpu_info,
        }

    def fold(self, reading: AnyReading) -> None:
        """Take in one reading, in session time and in order of receipt."""
        take = self._fold.get(type(reading))
        if take is not None:  # anchors and ticks change no number
            take(reading)

    @classmethod
    def restored(
        cls,
        state: bytes,
        parts: Sequence[bytes],
        blocks_of: BlocksOf,
        owed_of: Callable[[str, SavedRows], Owed],
    ) -> Self:
        """One that was saved.

        Raises:
            msgspec.MsgspecError: it is something else.
        """
        model = cls()
        model.restore(state, parts, blocks_of, owed_of)
        return model

    def release(self) -> None:
        """Free its memory; it folds no more."""
        super().release()
        self._fold = {}

    def snapshot(
        self,
        now_ns: int,
        window: Window,
        *,
        requests: bool = True,
        client: bool = True,
        unrecorded_readings: int = 0,
    ) -> Snapshot:
        """Everything as of now, less what is not asked for: rows, the client's view."""
        since_ns = self._client.began_ns
        start_ns, bin_ns, bins = self._history.columns(now_ns, window, since_ns)
        grid = Grid(start_ns, bin_ns, len(bins))
        latencies = self._latencies.table(now_ns, window, bins)
        seen = self._seen(now_ns, window, latencies)
        work = current_work(now_ns, self._engines, self._requests)
        kv = kv_state(self._engines, seen.steps)
        flowing = flow(seen, work, kv)
        return Snapshot(
            now_ns=now_ns,
            window=window,
            covered_ns=seen.covered_ns,
            verdict=self._observer.verdict(now_ns, work, flowing, since_ns),
            engines=self._engines.infos,
            endpoints=tuple(self._engines.endpoints.values()),
            gpus=tuple(self._gpus.values()),
            last_token_ns=self._last_token_ns,
            flow=flowing,
            latencies=latencies,
            timeline=timeline(start_ns, bin_ns, bins),
            steps=step_totals(seen.steps, seen.durations),
            kv=kv,
            requests=self._requests.rows() if requests else (),
            requests_evicted=self._requests.evicted,
            client=self._client.view(now_ns, window, grid) if client else None,
            cost=self._cost.cost(unrecorded_readings),
            notes=tuple(self._notes),
        )

    def _seen(
        self, now_ns: int, window: Window, latencies: tuple[Latency, ...]
    ) -> Seen:
        itl = next(row.quantiles for row in latencies if row.metric == "itl_s")
        return Seen(
            covered_ns=self._covered_ns(now_ns, window),
            steps=self._steps.over(now_ns, window),
            outcomes=self._outcomes.over(now_ns, window),
            prompts=self._outcomes.prompts.quantiles(now_ns, window),
            durations=self._steps.durations(now_ns, window),
            itl=itl,
        )

    def _covered_ns(self, now_ns: int, window: Window) -> int:
        """How much of the window an engine was there to be watched."""
        if self._began_ns is None:
            return 0
        watched_ns = max(0, now_ns - self._began_ns)
        return watched_ns if window.value is None else min(watched_ns, window.value)

    def _began(self, t_ns: int) -> None:
        """Watching began; steps of before the session count, what stood then not."""
        if self._began_ns is None or t_ns < self._began_ns:
            self._began_ns = t_ns

    # One method a kind of reading.

    def _step(self, step: Step) -> None:
        self._began(step.start_ns)
        rank = self._engines.rank(step.source, step.rank)
        output_tokens = self._lives.step(step)
        kv = self._engines.take_step(step)
        self._steps.add(step, output_tokens, rank.info)
        self._history.add_step(step, output_tokens, kv)
        self._observer.step(step)
        if output_tokens and step.end_ns > (self._last_token_ns or step.start_ns):
            self._last_token_ns = step.end_ns

    def _event(self, event: RequestEvent) -> None:
        self._began(max(event.t_ns, 0))
        self._lives.event(event)
        self._observer.worked(event.t_ns)

    def _info(self, info: EngineInfo) -> None:
        self._began(max(info.t_ns, 0))
        self._engines.take_info(info)
        self._observer.info(info)

    def _endpoint(self, endpoint: Endpoint) -> None:
        self._engines.endpoints[endpoint.source] = endpoint

    def _totals(self, totals: Totals) -> None:
        self._lives.totals(totals)
        self._engines.take_totals(totals)
        self._cost.totals(totals)

    def _note(self, note: Note) -> None:
        self._notes.append(note)
        self._observer.note(note)
        self._client.note(note)
        if note.kind is NoteKind.DROPPED:
            self._cost.dropped(note)
            self._lives.dropped(note)
            for rank in self._engines.of(note.source):
                rank.forget()
        elif note.kind is NoteKind.LOST:
            self._lives.lost(note)
            self._engines.lost(note.source)

    def _record(self, record: RequestRecord) -> None:
        ended_ns = self._client.record(record)
        if record.failure not in {None, ABORTED}:
            self._outcomes.client_failed(record, ended_ns)

    def _gpu_info(self, gpu: GpuInfo) -> None:
        if gpu.name is not None:
            self._gpus.pop(None, None)
        elif self._gpus.keys() - {None}:
            return
        if len(self._gpus) < MOST_GPUS:
            self._gpus[gpu.uuid] = gpu
