"""Limits that are changed while an engine runs are those that every number goes by."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    EngineSettings,
    LimitChange,
    Note,
    NoteKind,
    Step,
    Tick,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health
from inferwatch.metrics.steps.live_limits import change_text, values_of
from tests.inferwatch.metrics.scripted_live_limits import S, live, story

INFO = EngineInfo(
    source="engine-1",
    t_ns=2,
    pid=7,
    model="tiny",
    vllm_version="0",
    max_num_seqs=12,
    max_num_batched_tokens=512,
)


def shown(
    readings: Iterable[AnyReading], now_ns: int = 9 * S, source: str | None = None
) -> Snapshot:
    model = Model()
    for reading in readings:
        model.fold(reading)
    return model.snapshot(now_ns, SnapshotQuery(Window.SESSION, source=source))


def limits_shown(snapshot: Snapshot) -> list[tuple[int | None, int | None]]:
    return [
        (each.max_num_seqs, each.max_num_batched_tokens) for each in snapshot.engines
    ]


def step(number: int, start_s: float, **fields: Any) -> Step:
    start_ns = round(start_s * S)
    known: dict[str, Any] = {
        "prefill_requests": 0,
        "decode_requests": 8,
        "prefill_tokens": 0,
        "decode_tokens": 8,
        "running": 8,
        "waiting": 0,
        "bound_by": BoundBy.NOTHING,
    }
    return Step(
        source="engine-1",
        index=number,
        start_ns=start_ns,
        end_ns=start_ns + S // 2,
        duration_ns=S // 2,
        **(known | fields),
    )


def test_what_is_in_force_stands_where_start_up_values_did() -> None:
    settings = EngineSettings(
        source="engine-1", t_ns=2, settings={"max_num_seqs": 12, "dtype": "auto"}
    )
    told: list[AnyReading] = [INFO, settings, *story()]

    born, seqs, both, back = (shown(told[: 2 + n]) for n in (1, 2, 3, 4))

    assert limits_shown(born) == limits_shown(back) == [(12, 512)]
    assert limits_shown(seqs) == [(4, 512)]
    assert limits_shown(both) == [(4, 64)]
    assert both.settings["max_num_seqs"] == 4
    assert both.settings["dtype"] == "auto"
    assert back.settings["max_num_seqs"] == 12
    assert [each.in_force for each in both.live_limits] == [True]
    assert [each.change for each in back.live_limits] == [LimitChange.WATCHER_GONE]


def test_what_is_as_at_start_is_as_it_was_typed() -> None:
    """The budget of a step may be less than the flag, as with speculative tokens."""
    typed = replace(INFO, max_num_batched_tokens=640)

    assert limits_shown(shown([typed, *story()[:1]])) == [(12, 640)]
    assert limits_shown(shown([typed, *story()[:2]])) == [(4, 640)]
    assert limits_shown(shown([typed, *story()[:3]])) == [(4, 64)]
    assert limits_shown(shown([typed, *story()])) == [(12, 640)]


def test_changes_are_remembered_as_they_were_told() -> None:
    many = [live(n + 5, version=n, max_num_seqs=2 + n % 9) for n in range(1, 99)]

    assert shown([INFO, *story()]).limit_changes == tuple(story())
    assert shown([INFO, *many]).limit_changes == tuple(many[-64:])
    assert shown([INFO, *many, replace(INFO, pid=8)]).limit_changes == ()


def test_an_engine_without_control_has_none() -> None:
    assert shown([INFO]).live_limits == ()


def test_another_engine_starts_with_its_own() -> None:
    """The same is told again of one that lives, and nothing is forgotten."""
    told: list[AnyReading] = [INFO, *story()[:3]]
    again = replace(INFO, t_ns=4 * S)
    restarted = replace(INFO, t_ns=4 * S, pid=8, max_num_seqs=32)
    gone = Note(t_ns=4 * S, kind=NoteKind.LOST, text="gone", source="engine-1")

    assert limits_shown(shown([*told, again])) == [(4, 64)]
    assert limits_shown(shown([*told, restarted])) == [(32, 512)]
    assert shown([*told, restarted]).live_limits == ()
    assert shown([*told, gone]).live_limits == ()
    assert limits_shown(shown([*told, gone, restarted])) == [(32, 512)]


def test_each_server_has_its_own() -> None:
    other = replace(INFO, source="engine-2", pid=8)
    told: list[AnyReading] = [INFO, other, *story()[:2], *story(source="engine-2")[:1]]

    both = shown(told)
    one, two = (shown(told, source=name) for name in ("engine-1", "engine-2"))

    assert limits_shown(both) == [(4, 512), (12, 512)]
    assert [each.in_force for each in both.live_limits] == [True, False]
    assert limits_shown(one) == [(4, 512)]
    assert limits_shown(two) == [(12, 512)]
    assert [each.source for each in two.live_limits] == ["engine-2"]


def test_a_step_has_the_budget_that_it_began_under() -> None:
    """One that was under way when it changed ends after that is told."""
    told: list[AnyReading] = [
        INFO,
        live(3, LimitChange.START, version=0),
        step(1, 0.0),
        live(round(0.6 * S), max_num_batched_tokens=16),
        step(2, 0.5),
        step(3, 1.0),
    ]

    share = [shown(told[:n], now_ns=2 * S).flow.budget_usage for n in (3, 5, 6)]

    assert share == [8 / 512, 16 / 1024, 24 / (512 + 512 + 16)]


def test_a_step_that_must_serve_more_than_the_budget_fills_it() -> None:
    told: list[AnyReading] = [INFO, live(5, max_num_batched_tokens=4), step(1, 0.5)]

    assert shown(told, now_ns=2 * S).flow.budget_usage == 1.0


def test_the_verdict_says_what_it_was_at_start() -> None:
    bound = {"bound_by": BoundBy.SEQS, "waiting": 9}
    told: list[AnyReading] = [
        INFO,
        live(5, max_num_seqs=8),
        *(step(n, n / 2, **bound) for n in range(1, 13)),
        Tick(t_ns=7 * S),
    ]

    verdict = shown(told, now_ns=7 * S).verdict

    assert verdict.health is Health.QUEUEING
    assert "mostly max_num_seqs 8 (12 at start)" in verdict.sentence


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ((12, 512), live(1, max_num_seqs=4), "max_num_seqs 12 → 4, by ada (pid 4)"),
        (
            (12, 512),
            live(1, max_num_seqs=4, max_num_batched_tokens=64, kept=True),
            (
                "max_num_seqs 12 → 4, max_num_batched_tokens 512 → 64, by ada (pid 4); "
                "they stay when it goes"
            ),
        ),
        (
            (4, 512),
            live(1, LimitChange.RESET),
            "start-up limits are back, by ada (pid 4)",
        ),
        (
            (4, 512),
            live(1, LimitChange.WATCHER_GONE),
            "start-up limits are back: the watcher is gone",
        ),
        ((4, 512), live(1, LimitChange.START), None),
        ((4, 512), live(1, max_num_seqs=4), None),
        (None, live(1, max_num_seqs=4), None),
    ],
    ids=["one", "both, kept", "reset", "gone", "born", "told again", "heard late"],
)
def test_a_change_is_said_in_a_sentence(was: Any, now: Any, text: str | None) -> None:
    assert change_text(was, now) == text


def test_values_are_those_in_force() -> None:
    assert values_of(live(1, max_num_seqs=4)) == (4, 512)
