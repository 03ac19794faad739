"""Single steps, a curve and stalls that look like a busy engine, and never vary."""

from dataclasses import replace
from random import Random

from collectors.contract.readings import BoundBy, Step
from inferwatch.metrics.series.timeline import cell_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint, Stall, StallKind
from tests.inferwatch.ui.conftest import NOW_NS, S, ScriptedFeed, ScriptedRecall

MS = 1_000_000
SOURCE = "demo"
COUNT = 4_000
SLOW = 30_500
"""The index of a very long step."""


def steps(end_ns: int = NOW_NS, count: int = COUNT) -> list[Step]:
    """Decodes of a growing batch; now and then a prompt, once a very long step."""
    random, told = Random(5), []
    for back in range(count):
        index = 31_000 - back
        prefills = index % 17 == 0
        batch = 4 + (index // 40) % 12
        took_ns = (9 if prefills else 4) * MS + random.randint(0, MS) + batch * 150_000
        if index == SLOW:
            took_ns = 1_400 * MS
        members = list(range(400 - batch, 401)) if prefills else range(400 - batch, 400)
        told.append(
            Step(
                source=SOURCE,
                index=index,
                start_ns=end_ns - took_ns,
                end_ns=end_ns,
                duration_ns=took_ns,
                prefill_requests=int(prefills),
                decode_requests=batch,
                prefill_tokens=(64 + index % 900) * prefills,
                decode_tokens=batch,
                running=batch + prefills,
                waiting=index % 3,
                bound_by=BoundBy.DEFERRED if index % 90 == 0 else BoundBy.NOTHING,
                kv_used_blocks=200,
                kv_cached_blocks=40,
                kv_free_blocks=208,
                members=list(members),
                scheduled=[1] * batch + [64 + index % 900] * prefills,
                produced=[1] * batch + [index % 2] * prefills,
            )
        )
        end_ns -= took_ns + 100_000
    return told[::-1]


CURVE = BatchCurve(
    points=tuple(
        BatchPoint(
            batch=batch,
            steps=40 * (13 - place),
            step_mean_s=0.004 + 0.0003 * batch,
            output_tokens_per_s=batch / (0.004 + 0.0003 * batch),
        )
        for place, batch in enumerate((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
    ),
    now_batch=13.4,
    prefill_steps=289,
)
STALLS = (
    Stall(
        kind=StallKind.STARVED,
        start_ns=NOW_NS - 9 * S,
        end_ns=NOW_NS - 2 * S,
        evidence="it waited 7.0 s while 31 later ones were taken; its priority is 5",
        key="demo/cmpl-" + "長い" * 90,
    ),
    Stall(
        kind=StallKind.DECODE,
        start_ns=NOW_NS - 12 * S,
        end_ns=NOW_NS - 11 * S,
        evidence=(
            "tokens came 63.2 ms apart, usually 6.1 ms, while 2,962 prompt tokens were "
            "computed"
        ),
        step=SLOW,
    ),
    Stall(
        kind=StallKind.GAP,
        start_ns=NOW_NS - 40 * S,
        end_ns=NOW_NS - 39 * S,
        evidence=(
            "no step for 1.0 s with 7 running, 12 waiting; a step usually takes 6.9 ms"
        ),
        step=28_001,
    ),
)


def with_steps(made: Snapshot) -> Snapshot:
    """The scripted snapshot of an engine that tells all of its steps."""
    line = made.timeline
    heat = tuple(
        None
        if slowest is None or mean_s is None
        else tuple(
            sorted(
                {
                    cell_of(round(mean_s * S)): count - 3,
                    cell_of(round(mean_s * S)) + 1: 2,
                    cell_of(slowest.duration_ns) + 2: 1,
                }.items()
            )
        )
        for slowest, mean_s, count in zip(
            line.slowest_step, line.step_mean_s, line.steps, strict=True
        )
    )
    rows = tuple(
        replace(row, key=f"{SOURCE}/{row.request_id}") for row in made.requests
    )
    return replace(
        made,
        requests=rows,
        batch_curve=CURVE,
        stalls=STALLS,
        timeline=replace(line, step_heat=heat, bound_deferred=line.bound_other),
        steps=replace(
            made.steps,
            share_by_graph={"FULL": 0.91, "NONE": 0.09},
            padded_share=0.062,
        ),
    )


def feed_with_steps(**fields: object) -> ScriptedFeed:
    """A feed that shows them, and recalls them."""
    recall = ScriptedRecall(told=steps())
    return ScriptedFeed(change=with_steps, recall=recall, **fields)  # type: ignore[arg-type]
