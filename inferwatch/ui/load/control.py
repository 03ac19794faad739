"""The load of a session: started, changed and ended, and what of that is under way."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from inferwatch.errors import InferwatchError
from inferwatch.feed import LoadDesk
from inferwatch.formatting import counted
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import LoadRun
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.load.search import SloSearch
from inferwatch.ui.load.status import changed
from inferwatch.ui.messages import LookAgain

STALE_NS = 5_000_000_000
"""A rate not followed within this time is no longer shown."""
STEP = 1.1
SEARCH_LOOK_S = 0.2
"""How often a search looks whether its run has ended."""
BURST_S, LEAST_BURST, MOST_BURST = 5.0, 8, 500
"""A burst is what would come in so many seconds, within bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdjustment:
    """The rate or users requested of a running generator, and the value before."""

    value: float
    users: bool = False
    before: float | None = None
    since_ns: int = 0


def stepped(adjustment: LoadAdjustment, by: int, now_ns: int) -> LoadAdjustment:
    """Return a load a tenth higher or lower; a step up and one down cancel out."""
    value = adjustment.value
    if adjustment.users:
        step = max(round(value * (STEP - 1)), 1) if by > 0 else _back(value)
        target = max(value + by * step, 1.0)
    else:
        target = float(f"{value * STEP**by:.4g}")
    before = adjustment.value if adjustment.before is None else adjustment.before
    return LoadAdjustment(
        value=target, users=adjustment.users, before=before, since_ns=now_ns
    )


def wish_of(adjustment: LoadAdjustment) -> str:
    """Return the requested change as text, to show until the generator follows it."""
    if adjustment.before is None:
        return ""
    return changed(adjustment.before, adjustment.value, users=adjustment.users) + "  …"


def _back(users: float) -> float:
    """Return the size, in users, of the step that led up to this number."""
    return max(round(users * (1 - 1 / STEP)), 1)


def _run_in(snapshot: Snapshot, run_id: str) -> ClientView | None:
    runs = snapshot.client.runs if snapshot.client else ()
    return next((each for each in runs if each.run and each.run.run_id == run_id), None)


class LoadControl:
    """What the load screen has of a session's load desk, and asked of it."""

    def __init__(self, screen: WatchScreen) -> None:
        self.searching = False
        self._screen = screen
        self._snapshot: Snapshot | None = None
        self._asked: LoadAdjustment | None = None
        self._doing = ""
        self._search: SloSearch | None = None
        """The search under way, or the last one until another load starts."""

    @property
    def desk(self) -> LoadDesk | None:
        return self._screen.feed.load_desk

    @property
    def latest(self) -> LoadRun | None:
        """The current or last run, even if another one is shown."""
        view = self.latest_in(self._snapshot) if self._snapshot else None
        return view.run if view else None

    def latest_in(self, snapshot: Snapshot) -> ClientView | None:
        """Return our own run while it lasts, even if other runs began later."""
        desk = self.desk
        ours = _run_in(snapshot, desk.plan.run_id) if desk and desk.running else None
        return ours or snapshot.client

    def measured_in(self, snapshot: Snapshot) -> float | None:
        """Return the rate that our own plan's warm-up measured; None if none did."""
        ours = _run_in(snapshot, self.desk.plan.run_id) if self.desk else None
        return ours.measured_per_s if ours else None

    def follow(self, snapshot: Snapshot) -> None:
        """Drop the requested change if the generator has followed, or it is too old."""
        self._snapshot = snapshot
        asked, run = self._asked, self.latest
        if asked is None:
            return
        actual = None if run is None else run.users if asked.users else run.rate_per_s
        followed = actual is not None and abs(actual - asked.value) < 1e-6 * asked.value
        if followed or run is None or snapshot.now_ns - asked.since_ns > STALE_NS:
            self._asked = None

    @property
    def adjustment(self) -> LoadAdjustment | None:
        """The rate or users last requested, else the plan's, else the measured ones."""
        desk, run = self.desk, self.latest
        if self._asked is not None or desk is None or not desk.running:
            return self._asked
        plan = desk.plan
        if plan.arrivals is Arrivals.CLOSED:
            return LoadAdjustment(value=plan.concurrency, users=True)
        if plan.arrivals is Arrivals.TRACE:
            return None
        measured = run.rate_per_s if run is not None else None
        rate = plan.rate_per_s if plan.rates is None else None
        rate = rate if rate is not None else measured
        return None if rate is None else LoadAdjustment(value=rate)

    @property
    def wish(self) -> str:
        """The text of what is starting or stopping, else of the requested change."""
        if self._search is not None and not self._doing:
            return self._search.text
        if self._doing or self._is_coming:
            return self._doing or "starting…"
        return wish_of(self._asked) if self._asked else ""

    @property
    def _is_coming(self) -> bool:
        """Whether the load was started but has not reported yet."""
        desk, run, playback = self.desk, self.latest, self._screen.feed.playback
        live = playback is None or playback.at_live
        if desk is None or not desk.running or not live:
            return False
        return run is None or run.run_id != desk.plan.run_id

    async def start_or_stop(self, plan: LoadPlan | None) -> None:
        """Stop the load, or start this plan; say so while that takes a moment."""
        desk = self.desk
        if desk is None:
            return
        if not desk.running:
            self._search = None
        self._asked = None
        self._doing = "stopping…" if desk.running else "starting…"
        try:
            if desk.running:
                await desk.stop()
            elif plan is not None:
                await desk.start(plan)
        except InferwatchError as error:
            self._refuse(error)
        finally:
            self._doing = ""

    def _refuse(self, error: InferwatchError) -> None:
        self._screen.notify(str(error), title="No load", severity="error", markup=False)

    async def search_rate(self, plan: LoadPlan) -> None:
        """Search for the highest rate that holds the plan's SLO."""
        desk, now = self.desk, self._screen.feed.present()
        if desk is None:
            return
        share = DEFAULT_SHARE if now.slo is None else now.slo.target
        measured = self.measured_in(now) if plan.measures_rate else None
        self._search, self.searching = SloSearch(plan, measured, share), True
        try:
            await self._run_search(desk, self._search)
        except InferwatchError as error:
            self._refuse(error)
        finally:
            self.searching = False

    def end_search(self) -> None:
        if self.searching and self._search is not None:
            self.searching = False
            self._search.stop()

    async def _run_search(self, desk: LoadDesk, search: SloSearch) -> None:
        while self.searching and (plan := search.next_plan()) is not None:
            await desk.start(plan)
            if not self.searching:  # it was ended meanwhile
                await desk.stop()
                return
            run_id = desk.plan.run_id
            self._screen.post_message(LookAgain())
            while desk.running:  # noqa: ASYNC110 - the generator is another process
                await asyncio.sleep(SEARCH_LOOK_S)
            if self.searching:
                search.add(_run_in(self._screen.feed.present(), run_id))

    async def ask(self, by: int) -> None:
        """Request a tenth more or less load; show it before the generator follows."""
        desk, adjustment, snapshot = self.desk, self.adjustment, self._snapshot
        if desk is None or not desk.running or adjustment is None or snapshot is None:
            return
        target = stepped(adjustment, by, snapshot.now_ns)
        if target.users:
            change = desk.change(concurrency=round(target.value))
        else:
            change = desk.change(rate_per_s=target.value)
        if await self._is_accepted(change):
            self._asked = target
            self._screen.post_message(LookAgain())

    async def burst(self) -> None:
        """Send a burst beside the rate: the plan's own, else some seconds' worth."""
        desk, adjustment = self.desk, self.adjustment
        if desk is None or not desk.running or adjustment is None:
            return
        worth = min(max(round(adjustment.value * BURST_S), LEAST_BURST), MOST_BURST)
        requests = desk.plan.burst_requests or worth
        if await self._is_accepted(desk.change(burst=requests)):
            told = f"a burst of {counted(requests, 'request').strip()}"
            self._screen.notify(told, timeout=3)

    async def _is_accepted(self, change: Awaitable[None]) -> bool:
        """Whether the running load takes a change; say why if it does not."""
        try:
            await change
        except InferwatchError as error:
            self._screen.notify(str(error), severity="warning", markup=False)
            return False
        return True
