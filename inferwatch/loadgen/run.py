"""A run: warm up and measure, then follow the schedule; each turn of it reported."""

from collectors.clock import monotonic_ns
from collectors.readings import LoadEvent, LoadKind
from inferwatch.loadgen.client import Client
from inferwatch.loadgen.flights import Flights
from inferwatch.loadgen.open_loop import OpenLoop
from inferwatch.loadgen.outbox import Outbox
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.schedule import schedule
from inferwatch.loadgen.warmup import NoOutputError, WarmUp


class Run:
    """One run of a plan. Cancel it to stop: what is in flight is aborted."""

    def __init__(self, plan: LoadPlan, client: Client, outbox: Outbox) -> None:
        self._plan = plan
        self._client = client
        self._outbox = outbox
        self._flights = Flights(plan.run_id, client, outbox)
        self._why = ""

    async def run(self) -> None:
        """Follow the plan to its end.

        Raises:
            NoOutputError: the warm-up brought nothing to measure.
        """
        self._report(LoadKind.STARTED, f"{self._plan.model}, seed {self._plan.seed}")
        try:
            await self._client.warm_up()
            await self._open_loop(await self._rate_per_s())
            await self._flights.land()
        except NoOutputError as error:
            self._why = f"; {error}"
            raise
        finally:
            await self._flights.abort()
            self._report(LoadKind.STOPPED, self._flights.tally.sentence() + self._why)

    async def _rate_per_s(self) -> float:
        """As asked, else a fraction of what the warm-up measures."""
        asked = self._plan.rate_per_s
        if self._plan.warmup_s <= 0 and asked is not None:
            return asked
        tokens_per_s = await WarmUp(self._plan, self._flights).measure()
        self._report(
            LoadKind.WARMUP_ENDED,
            f"measured {tokens_per_s:.0f} output tokens/s",
            rate_per_s=tokens_per_s / self._plan.output_tokens.mean,
        )
        return asked or self._plan.request_rate(tokens_per_s)

    async def _open_loop(self, rate_per_s: float) -> None:
        start_ns = monotonic_ns()
        self._report(
            LoadKind.RATE,
            f"{self._plan.arrivals} {rate_per_s:.2f} requests/s",
            rate_per_s=rate_per_s,
        )
        loop = OpenLoop(self._flights, self._plan.max_in_flight, self._on_burst)
        await loop.follow(schedule(self._plan, rate_per_s), start_ns)

    def _on_burst(self, requests: int) -> None:
        tokens = self._plan.burst_tokens
        self._report(LoadKind.BURST, f"{requests} requests for {tokens} tokens of KV")

    def _report(
        self, kind: LoadKind, text: str, rate_per_s: float | None = None
    ) -> None:
        self._outbox.put(
            LoadEvent(t_ns=monotonic_ns(), kind=kind, rate_per_s=rate_per_s, text=text)
        )
