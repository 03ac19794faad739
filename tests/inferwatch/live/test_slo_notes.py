"""What is noted when objectives begin to be missed, and when they are met again."""

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import NoteKind, Vantage
from inferwatch.live.live_session import LiveSession, SloNotes
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.objectives.view import SloState

S = 1_000_000_000
STATE = SloState(
    slo="ttft_s<1 e2el_s<9",
    target=0.95,
    vantage=Vantage.FRONTEND,
    judged=40,
    good=31,
    missed={"e2el_s": 2, "ttft_s": 6, "failed": 3},
)
BEGAN = (
    "SLO missed: 78% of 40 requests good, missed by 6 TTFT, 3 failed, 2 E2EL: "
    "ttft_s<1 e2el_s<9"
)


def test_the_beginning_and_the_end_are_noted_once() -> None:
    notes = SloNotes()

    said = [
        notes.news(since_ns, now_s * S, lambda: STATE)
        for now_s, since_ns in enumerate((None, None, S, S, S, None, None))
    ]

    assert said == [
        None,
        None,
        BEGAN,
        None,
        None,
        "SLO met again after 4 s",
        None,
    ]


async def test_what_is_missed_only_when_the_session_ends_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = LiveSession(SessionClock(), Pipeline(Model()))
    async with session.recorded():
        monkeypatch.setattr(Pipeline, "slo_missed_since_ns", 5)

    notes = [
        each.text for each in session.snapshot().notes if each.kind is NoteKind.SLO
    ]
    assert notes == ["SLO missed"]
