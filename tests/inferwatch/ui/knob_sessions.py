"""A scripted engine whose limits are turned, and what stands in the dialog of it."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec
from textual.pilot import Pilot
from textual.widgets import Label

from collectors.contract.readings import LimitChange, LiveLimits, Step
from inferwatch.errors import InferwatchError
from inferwatch.feed import LimitPair
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import DialogTable
from inferwatch.ui.knobs.dialog import KnobScreen, LimitField
from tests.inferwatch.ui.conftest import (
    NOW_NS,
    S,
    ScriptedFeed,
    ScriptedPlayback,
    app_on,
)
from tests.inferwatch.ui.typed_keys import handed_out, is_busy

CHANGED_NS = NOW_NS - 40 * S
BUDGET = "max_num_batched_tokens"


def limits(**changes: Any) -> LiveLimits:
    """As at start, or as changed."""
    start = LiveLimits(
        t_ns=8 * S,
        version=0,
        change=LimitChange.START,
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        start_max_num_seqs=32,
        start_max_num_batched_tokens=2048,
    )
    return msgspec.structs.replace(start, **changes)


def lowered(**changes: Any) -> LiveLimits:
    """Eight requests at a time, by somebody, forty seconds ago."""
    told = {
        "t_ns": CHANGED_NS,
        "version": 3,
        "change": LimitChange.SET,
        "max_num_seqs": 8,
        "by": "bob (pid 7)",
    }
    return limits(**{**told, **changes})


@dataclass
class ScriptedDesk:
    """An engine that does as asked, or refuses; the snapshot tells it at once."""

    limits: LiveLimits = field(default_factory=limits)
    unavailable: str | None = None
    must_name_host: str | None = None
    by: str = "us (pid 1)"
    fails: InferwatchError | None = None
    is_idle: bool = False
    """It answers, and has no step that would tell."""
    asked: list[object] = field(default_factory=list)
    answered: tuple[LiveLimits, ...] = ()

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        self.asked.append((wanted.max_num_seqs, wanted.max_num_batched_tokens, keep))
        values = {
            name: value
            for name in ("max_num_seqs", BUDGET)
            if (value := getattr(wanted, name)) is not None
        }
        self._turn(LimitChange.SET, kept=keep, **values)

    async def reset(self) -> None:
        self.asked.append("reset")
        start = {"max_num_seqs": 32, BUDGET: 2048}
        self._turn(LimitChange.RESET, kept=False, **start)

    def _turn(self, change: LimitChange, **values: Any) -> None:
        if self.fails is not None:
            raise self.fails
        now = msgspec.structs.replace(
            self.limits,
            t_ns=NOW_NS,
            version=self.limits.version + 1,
            change=change,
            by=self.by,
            **values,
        )
        self.answered = (now,)
        if not self.is_idle:
            self.limits = now


def steps_around(t_ns: int) -> list[Step]:
    """A step every 50 ms, twice as many tokens before as after."""
    first = (t_ns - 60 * S) // 50_000_000
    return [
        Step(
            index=n,
            start_ns=n * 50_000_000,
            end_ns=n * 50_000_000 + 40_000_000,
            duration_ns=40_000_000,
            running=32 if n * 50_000_000 < t_ns else 8,
            waiting=0 if n * 50_000_000 < t_ns else 20 + n % 5,
            members=list(range(8)),
            scheduled=[1] * 8,
            produced=[4 if n * 50_000_000 < t_ns else 2] * 8,
        )
        for n in range(first, first + 2_400)
    ]


def rows_around(t_ns: int) -> tuple[RequestRow, ...]:
    """Ten requests a second; after the change they wait ten times as long."""
    rows = []
    for n in count():
        arrived_ns = t_ns - 60 * S + n * 100_000_000
        if arrived_ns > t_ns + 45 * S:
            break
        slow = 10.0 if arrived_ns > t_ns else 1.0
        noise = 1 + (n * 7919 % 13) / 20
        rows.append(
            RequestRow(
                key=f"demo:{n}",
                request_id=f"cmpl-{n}",
                state=RequestState.FINISHED,
                arrived_ns=arrived_ns,
                ttft_s=0.05 * slow * noise,
                tpot_s=0.01 * noise / slow**0.2,
                e2el_s=0.05 * slow * noise + 0.3,
            )
        )
    return tuple(reversed(rows))


@dataclass
class Turned:
    """A feed of an engine with control, and its desk."""

    feed: ScriptedFeed
    desk: ScriptedDesk


def turned_by(feed: ScriptedFeed) -> Turned:
    """A busy engine of ours whose limits are as at start."""
    desk = ScriptedDesk()
    feed.limit_desk = desk
    feed.playback = ScriptedPlayback(goes_on=True, at_live=True, playing=True, marks=())

    def told(made: Snapshot) -> Snapshot:
        return replace(made, live_limits=(desk.limits,))

    feed.change = told
    return Turned(feed, desk)


def changed(turned: Turned, at_ns: int = CHANGED_NS) -> Turned:
    """The same, forty seconds after somebody lowered one."""
    turned.desk.limits = lowered(t_ns=at_ns)
    desk, rows = turned.desk, rows_around(at_ns)
    turned.feed.recall.told = steps_around(at_ns)
    turned.feed.change = lambda made: replace(
        made, live_limits=(desk.limits,), requests=rows
    )
    return turned


async def opened(pilot: Pilot[None], key: str = "3") -> KnobScreen:
    await pilot.press(key, "k")
    await handed_out(pilot)
    return await rested(pilot)


async def rested(pilot: Pilot[None]) -> KnobScreen:
    """The dialog, once what it computes has come."""
    await handed_out(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, KnobScreen)
    for _ in range(400):
        if not is_busy(screen):
            break
        await pilot.pause(0.01)
    await pilot.pause()
    return screen


def written(screen: KnobScreen) -> str:
    table = screen.query_one(DialogTable)
    lines = table.draw(table.size.width, table.size.height)
    return "\n".join("".join(run.text for run in line).rstrip() for line in lines)


def label(screen: KnobScreen, selector: str) -> str:
    return str(screen.query_one(selector, Label).render())


def texts(screen: KnobScreen, selector: str) -> list[str]:
    return [str(each.render()) for each in screen.query(selector).results(Label)]


def fields(screen: KnobScreen) -> list[str]:
    return [each.value for each in screen.query(LimitField)]


def app_of(turned: Turned) -> InferwatchApp:
    return app_on("steps", turned.feed)
