"""While limits of ours are in force the header says so, however narrow it is."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from textual.pilot import Pilot

from collectors.contract.readings import LimitChange, LiveLimits
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.widgets.limit_texts import highest, limit_words
from tests.inferwatch.metrics.scripted_live_limits import S, live, story
from tests.inferwatch.ui.conftest import snapshot
from tests.inferwatch.ui.pictures import Pictures, named

Settle = Callable[[Pilot[None]], Awaitable[None]]
Text = Callable[[InferwatchApp, str], list[str]]
OURS = f"root (pid {os.getpid()})"
BOTH = "max_num_seqs 4 of 12 · max_num_batched_tokens 64 of 512"
SIZES = [(80, 24), (120, 32), (200, 60)]


def lowered(**now: Any) -> LiveLimits:
    return live(5, by=OURS, **now)


def under(*limits: LiveLimits) -> Snapshot:
    shown = snapshot()
    engines = (shown.engines[0],) * max(len(limits), 1)
    return replace(shown, live_limits=limits, engines=engines)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([], []),
        ([live(5, LimitChange.START)], []),
        (
            [lowered(max_num_seqs=4)],
            [
                "max_num_seqs 4 of 12, by us",
                "max_num_seqs 4 of 12",
                "seqs 4/12, by us",
                "seqs 4/12",
                "seqs 4/12",
            ],
        ),
        (
            [live(5, max_num_seqs=4, max_num_batched_tokens=64)],
            [
                f"{BOTH}, by ada (pid 4)",
                BOTH,
                "seqs 4/12 tokens 64/512, by ada (pid 4)",
                "seqs 4/12 tokens 64/512",
                "seqs 4/12 tokens 64/512",
            ],
        ),
        (
            [lowered(max_num_seqs=4), live(5, LimitChange.START)],
            [
                "max_num_seqs 4 of 12 on 1 of 2 engines, by us",
                "max_num_seqs 4 of 12 on 1 of 2 engines",
                "seqs 4/12 on 1 of 2 engines, by us",
                "seqs 4/12 on 1 of 2 engines",
                "seqs 4/12",
            ],
        ),
        (
            [lowered(max_num_seqs=4), live(5, max_num_seqs=2)],
            ["max_num_seqs 2 of 12"] * 2 + ["seqs 2/12"] * 3,
        ),
    ],
    ids=["no control", "as started", "one", "both", "one rank", "by two"],
)
def test_words_are_of_what_is_lower_than_at_start(
    limits: list[LiveLimits], words: list[str]
) -> None:
    assert list(limit_words(under(*limits))) == words


@pytest.mark.parametrize(
    ("span_s", "tokens"),
    [((0, 2.9), 512), ((2.5, 3.5), 512), ((3.1, 4.9), 64), ((3.1, 5.1), 512)],
    ids=["before", "over the change", "after it", "till it was taken back"],
)
def test_what_went_on_is_held_against_what_was_in_force_then(
    span_s: tuple[float, float], tokens: int
) -> None:
    changes = tuple(story())
    shown = replace(
        under(changes[2]),
        limit_changes=changes,
        engines=(structs.replace(snapshot().engines[0], source="engine-1"),),
    )
    span_ns = round(span_s[0] * S), round(span_s[1] * S)

    assert highest(shown, "max_num_batched_tokens", span_ns) == tokens
    assert highest(shown, "max_num_batched_tokens", span_ns, "engine-1") == tokens
    assert highest(shown, "max_num_batched_tokens", span_ns, "other") is None


def test_without_control_it_is_what_the_engine_was_started_with() -> None:
    told = snapshot().engines[0].max_num_seqs

    assert highest(snapshot(), "max_num_seqs", (0, S)) == told is not None


def test_in_a_replay_nobody_is_us() -> None:
    shown = under(lowered(max_num_seqs=4))

    assert limit_words(shown, replay=True)[0] == f"max_num_seqs 4 of 12, by {OURS}"


@pytest.fixture
def turned_down(feed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is shown is under limits of ours."""
    limits = lowered(max_num_seqs=4, max_num_batched_tokens=64)
    whole = type(feed).snapshot

    def snapshot(self: Any, *given: Any, **options: Any) -> Snapshot:
        shown: Snapshot = whole(self, *given, **options)
        info = structs.replace(
            shown.engines[0], max_num_seqs=4, max_num_batched_tokens=64
        )
        return replace(shown, live_limits=(limits,), engines=(info,))

    monkeypatch.setattr(type(feed), "snapshot", snapshot)


@pytest.mark.usefixtures("turned_down")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_header_tells_it_beside_the_time(
    app: InferwatchApp, text_of: Text, settle: Settle, size: tuple[int, int]
) -> None:
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        header = text_of(app, "HeaderLine")[0]

    narrow = size[0] < 100
    short = "seqs 4/12 tokens 64/512" + ("" if narrow else ", by us")
    assert (f"{BOTH}, by us" if size[0] == 200 else short) in header
    assert "tiny-llama" in header
    assert "03:12:41" in header
    assert narrow or "rec s17" in header


@pytest.mark.usefixtures("turned_down")
def test_picture_of_limits_of_ours(
    pictures: Pictures, app: InferwatchApp, settle: Settle
) -> None:
    assert not pictures(app, named(*SIZES), settle)
