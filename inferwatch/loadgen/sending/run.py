"""A run: warm up, follow the plan, drain; each turn of it reported."""

from collectors.readings import LoadKind
from inferwatch.loadgen.exchange.call import UnreachableError
from inferwatch.loadgen.exchange.transport import Transport
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.prompts.dataset import DatasetError
from inferwatch.loadgen.prompts.prompts import Prompts, prompts_of
from inferwatch.loadgen.sending.closed_run import ClosedRun
from inferwatch.loadgen.sending.open_run import OpenRun
from inferwatch.loadgen.sending.outbox import Outbox
from inferwatch.loadgen.sending.setting import Setting
from inferwatch.loadgen.sending.warmup import NoOutputError


class Run:
    """One run of a plan. Cancel it to stop: what is in flight is aborted."""

    def __init__(self, plan: LoadPlan, transport: Transport, outbox: Outbox) -> None:
        self._plan = plan
        self._setting = Setting(plan, transport, outbox)
        closed = plan.arrivals is Arrivals.CLOSED
        self._sending: ClosedRun | OpenRun | None = (
            ClosedRun(self._setting) if closed else OpenRun(self._setting)
        )
        self._why = ""

    async def run(self) -> None:
        """Follow the plan to its end.

        Raises:
            DatasetError: its data set cannot be read.
            NoOutputError: the warm-up brought nothing to measure.
            UnreachableError: the server has no address.
        """
        flights, report = self._setting.flights, self._setting.report
        try:
            await self._send()
            report(LoadKind.DRAINING, f"{len(flights)} in flight")
            await flights.land(self._drain_s)
            flights.raise_fault()
        except (DatasetError, NoOutputError, UnreachableError) as error:
            self._why = f"; {error}"
            raise
        finally:
            self._sending = None
            await self._setting.end()
            report(LoadKind.STOPPED, flights.tally.sentence() + self._why)

    def change(self, change: Change) -> str | None:
        """Go on so from now on; if that cannot be, why."""
        if why := change.refusal(self._plan):
            return why
        if self._sending is None:
            return "nothing more is sent"
        self._sending.change(change)
        return None

    async def _send(self) -> None:
        if self._sending is not None:
            await self._sending.follow(await self._set_out())
        self._sending = None

    @property
    def _drain_s(self) -> float:
        plan = self._plan
        return plan.request_timeout_s + 1 if plan.drain_s is None else plan.drain_s

    async def _set_out(self) -> Prompts:
        """All that can be done before the first request."""
        plan, setting = self._plan, self._setting
        prompts, form = await prompts_of(plan)
        kind = setting.transport.kind
        said = f"{plan.model}, seed {plan.seed}, {kind}, {form}"
        setting.report(LoadKind.STARTED, said)
        await setting.transport.open()
        setting.sampler.begin()
        setting.beside(setting.sampler.run())
        return prompts
