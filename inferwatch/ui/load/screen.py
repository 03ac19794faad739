"""Drive it: a plan, a run, and keys that change the run while it goes on."""

from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType

from inferwatch.errors import InferwatchError
from inferwatch.feed import LoadDesk
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.metrics.snapshot import LoadRun, Snapshot
from inferwatch.ui.load.form import LoadForm
from inferwatch.ui.load.host import HostScreen
from inferwatch.ui.load.steps import Asked, after, wish_of
from inferwatch.ui.load.view import LoadView
from inferwatch.ui.shared import explains
from inferwatch.ui.shared.messages import LookAgain

STALE_NS = 5_000_000_000
"""A wish that the generator did not follow by then is no longer told."""


class LoadScreen(LoadView):
    """The form where load can be started; the run live, or as it was recorded."""

    NAME = "load"
    QUESTION = "How does it do under a load that I choose?"
    EXPLAINS = explains.LOAD
    KEYS = (
        ("e", "edit the plan; esc leaves the form, tab goes on in it"),
        ("s", "start the load, or stop it"),
        ("> <", "ask a tenth more or less, while it runs; or a user more or less"),
        ("tab", "one chart after the other"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "start_stop", "start/stop", tooltip="Start the load, or stop it"),
        Binding(
            "greater_than_sign",
            "ask(1)",
            "more",
            key_display=">",
            tooltip="Ask a tenth more: requests per second, or users",
        ),
        Binding(
            "less_than_sign",
            "ask(-1)",
            "less",
            key_display="<",
            tooltip="Ask a tenth less",
        ),
        Binding("e,enter", "edit", "edit plan", key_display="e", tooltip="Edit it"),
    ]

    _asked: Asked | None = None
    _doing = ""
    _could: tuple[object, ...] = ()

    def show_panels(self, shown: Snapshot) -> None:
        """The run as of now, and what can be done about it."""
        client = shown.client
        self._forget_wish(client.run if client else None, shown.now_ns)
        super().show_panels(shown)
        self._show_what_can_be_done()

    def action_edit(self) -> None:
        """Into the form."""
        self.editing = True
        self.fit_height()
        self.query_one(LoadForm).enter()

    @on(LoadForm.Left)
    def _leave(self) -> None:
        self.editing = False
        self.fit_height()
        self.post_message(LookAgain())

    # What can be done.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing where there is no desk; greyed where there is a reason."""
        desk = self.desk
        if action in {"start_stop", "edit", "ask"} and desk is None:
            return False
        if desk is not None and action == "start_stop":
            possible = desk.running or desk.unavailable is None
            return possible or None
        if desk is not None and action == "ask":
            return desk.running and self._asked_now is not None
        return super().check_action(action, parameters)

    def _show_what_can_be_done(self) -> None:
        desk = self.desk
        could = desk and (desk.running, desk.unavailable, self._asked_now is None)
        if could != self._could:
            self._could = could or ()
            self.refresh_bindings()

    # The run.

    @on(LoadForm.StartAsked)
    def _start_asked(self) -> None:
        self.action_start_stop()

    def action_start_stop(self) -> None:
        """Follow the plan of the form, or stop what goes on; once at a time."""
        if all(each.group != "load" or each.is_finished for each in self.workers):
            self._start_or_stop()

    @work(group="load")
    async def _start_or_stop(self) -> None:
        desk = self.desk
        if desk is None:
            return
        if desk.running:
            await self._do(desk, "stopping…")
        elif await self._may_start(desk):
            await self._do(desk, "starting…")

    async def _may_start(self, desk: LoadDesk) -> bool:
        """A whole plan, a server that can be loaded, and nobody hurt unasked."""
        form = self.query_one(LoadForm)
        if desk.unavailable is not None:
            self.notify(desk.unavailable, severity="warning")
            return False
        if form.reading.plan is None:
            self.editing = True
            self.fit_height()
            form.enter()
            return False
        host = desk.must_name_host
        if host is None:
            return True
        named: bool = await self.app.push_screen_wait(HostScreen(host))
        return named

    async def _do(self, desk: LoadDesk, doing: str) -> None:
        """Start or stop; what takes a moment is told meanwhile."""
        plan = self.query_one(LoadForm).reading.plan
        self._asked, self._doing = None, doing
        self.editing = False
        self.set_focus(None)
        self.post_message(LookAgain())
        try:
            if desk.running:
                await desk.stop()
            elif plan is not None:
                await desk.start(plan)
        except InferwatchError as error:
            self.notify(str(error), title="No load", severity="error", markup=False)
        finally:
            self._doing = ""
            self.fit_height()
            self.post_message(LookAgain())

    async def action_ask(self, by: int) -> None:
        """A tenth more or less; a change is seen before the generator follows it."""
        desk, asked = self.desk, self._asked_now
        if desk is None or asked is None or not desk.running or self._shown is None:
            return
        wanted = after(asked, by, self._shown.now_ns)
        try:
            if wanted.users:
                await desk.change(concurrency=round(wanted.value))
            else:
                await desk.change(rate_per_s=wanted.value)
        except InferwatchError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self._asked = wanted
        self.post_message(LookAgain())

    @property
    def _asked_now(self) -> Asked | None:
        """What is wished for, else what the plan says, else what was measured."""
        desk, run = self.desk, self.run_shown
        if self._asked is not None or desk is None or not desk.running:
            return self._asked
        plan = desk.plan
        if plan.arrivals is Arrivals.CLOSED:
            return Asked(value=plan.concurrency, users=True)
        if plan.arrivals is Arrivals.TRACE:
            return None
        measured = run.rate_per_s if run is not None else None
        rate = plan.rate_per_s if plan.rates is None else None
        rate = rate if rate is not None else measured
        return None if rate is None else Asked(value=rate)

    @property
    def wish(self) -> str:
        """What goes on, else what was asked for."""
        if self._doing or self._is_coming:
            return self._doing or "starting…"
        return wish_of(self._asked) if self._asked else ""

    @property
    def _is_coming(self) -> bool:
        """Started, and nothing is heard of it yet: its process takes a moment."""
        desk, run, playback = self.desk, self.run_shown, self.feed.playback
        live = playback is None or playback.at_live
        if desk is None or not desk.running or not live:
            return False
        return run is None or run.run_id != desk.plan.run_id

    def _forget_wish(self, run: LoadRun | None, now_ns: int) -> None:
        """The generator follows it now, or will never."""
        asked = self._asked
        if asked is None:
            return
        told = None if run is None else run.users if asked.users else run.rate_per_s
        followed = told is not None and abs(told - asked.value) < 1e-6 * asked.value
        if followed or run is None or now_ns - asked.since_ns > STALE_NS:
            self._asked = None
