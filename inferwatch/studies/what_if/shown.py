"""Builds a run to simulate from a snapshot and its steps, as screens have them."""

from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EngineSettings, LoadPlanned, Step
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.studies.what_if.heard import (
    CannotTellError,
    ObservedRequest,
    RunReadings,
)
from inferwatch.studies.what_if.recorded import RecordedRun, run_of


def run_shown(
    snapshot: Snapshot, steps: Sequence[Step], source: str | None = None
) -> RecordedRun:
    """The run of the given source, or of the busiest engine, in these steps.

    Raises:
        CannotTellError: nothing can be predicted from them.
    """
    if not steps:
        raise CannotTellError(
            "no steps of an engine are known: what a batch costs is told by the probe "
            "alone"
        )
    readings = RunReadings(
        engines=list(snapshot.engines), limits=list(snapshot.live_limits)
    )
    begun_ns = min(step.end_ns for step in steps)
    for step in steps:
        readings.steps[step.source, step.rank].append(step)
    for row in snapshot.requests:
        if (row.added_ns or row.arrived_ns) >= begun_ns:
            of = row.key.removesuffix(f"/{row.request_id}")
            readings.requests[of, row.request_id] = _observed(row)
    readings.settings = [
        EngineSettings(source=each, t_ns=snapshot.now_ns, settings=snapshot.settings)
        for each in {engine.source for engine in snapshot.engines}
    ]
    for view in snapshot.client.runs if snapshot.client is not None else ():
        _add_load(readings, view)
    return run_of(readings, source, latest=True)


def _observed(row: RequestRow) -> ObservedRequest:
    arrived_ns = row.arrived_ns if row.arrived_ns != row.added_ns else None
    came_ns, added_ns = row.arrived_ns, row.added_ns

    def after(since_ns: int | None, passed_s: float | None) -> int | None:
        if since_ns is None or passed_s is None:
            return None
        return since_ns + round(passed_s * NS_PER_S)

    ended_ns = after(came_ns, row.e2el_s)
    if ended_ns is None and not row.state.live:
        ended_ns = added_ns
    return ObservedRequest(
        arrived_ns=arrived_ns,
        sent_ns=after(arrived_ns, row.ttft_s),
        finished_ns=ended_ns,
        added_ns=added_ns,
        scheduled_ns=after(added_ns, row.queue_s),
        prompt_tokens=row.prompt_tokens,
        max_tokens=row.max_tokens,
        cached_tokens=row.cached_tokens,
        ordinal=row.ordinal,
        external_id=row.external_id,
        priority=row.priority,
        header=row.header,
        lora=row.lora,
        class_name=row.class_name,
    )


def _add_load(readings: RunReadings, view: ClientView) -> None:
    run = view.run
    if run is not None and run.plan is not None:
        readings.plans.append(LoadPlanned(t_ns=run.began_ns or 0, plan=run.plan))
    readings.load.extend(view.events)
