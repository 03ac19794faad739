"""The header says what is kept in memory, and why it is recorded; an alert rings."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from collectors.contract.readings import Note, NoteKind
from inferwatch.feed import FlightState, RecordState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from tests.inferwatch.ui.conftest import NOW_NS

Settle = Callable[[Pilot[None]], Awaitable[None]]
SIZE = (150, 40)
S = 10**9


def in_flight(session: str = "", **state: Any) -> RecordState:
    known = {"keep_s": 300.0, "kept_s": 300.0, "kept_bytes": 9_000_000} | state
    return RecordState(session_id=session, flight=FlightState(**known))


STATES = {
    "filling": (in_flight(kept_s=42.0), "armed 42 s of 5 min in memory"),
    "armed": (in_flight(kept_s=301.0), "armed 5 min in memory"),
    "short": (
        in_flight(kept_s=130.0, cut_short=True),
        "armed 2 min 10 s in memory, no room for more",
    ),
    "recording": (
        in_flight("s4", because="p99(ttft_s) 2.40 > 2.00", since_ns=NOW_NS - 5 * S),
        "rec s4 5 s: p99(ttft_s) 2.40 > 2.00",
    ),
    "long": (
        in_flight("s4", because="a" * 99, since_ns=NOW_NS - 65 * S),
        f"rec s4 1 min 5 s: {'a' * 33}…",
    ),
}


@pytest.mark.parametrize("state", STATES)
async def test_the_header_says_how_it_is(
    app: InferwatchApp,
    feed: Any,
    settle: Settle,
    text_of: Callable[..., list[str]],
    state: str,
) -> None:
    feed.record, said = STATES[state]

    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)

        assert said in text_of(app, "HeaderLine")[0]


async def test_an_alert_rings_once_and_is_told(
    app: InferwatchApp, feed: Any, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []
    monkeypatch.setattr(InferwatchApp, "bell", lambda _: rung.append("bell"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        assert rung == []

        def alerted(made: Snapshot) -> Snapshot:
            note = Note(t_ns=made.now_ns, kind=NoteKind.ALERT, text="slo: 90% hold")
            return replace(made, notes=(*made.notes, note))

        feed.change = alerted
        await settle(pilot)
        await settle(pilot)

        assert rung == ["bell"]
        toasts = [each.message for each in app._notifications]
        assert any("slo: 90% hold" in each for each in toasts)


@pytest.mark.parametrize("state", ["filling", "recording"])
def test_picture_of_the_header(
    snap_compare: Any, app: InferwatchApp, feed: Any, settle: Settle, state: str
) -> None:
    feed.record = STATES[state][0]

    assert snap_compare(app, terminal_size=(120, 32), run_before=settle)
