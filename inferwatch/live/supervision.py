"""Lets a session outlive faults of its collectors: reports each and tries again.

A :class:`CollectorError` is not such a fault but says something of the source: it is
raised, for whoever collects to handle.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.collector import Collector, CollectorError, name_of
from collectors.contract.readings import AnyReading
from inferwatch import faults

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_NS = 60 * NS_PER_S
"""A collector that ran for this long is restarted after the first pause again."""


class FaultReporter:
    """Reports the faults of one source, a fault that repeats only once."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._reported: set[tuple[str, int | None]] = set()
        """Where in our code the reported faults were raised."""

    def report(self, error: Exception) -> None:
        """Report an error, with the file that holds its traceback."""
        if faults.let_through():
            raise error
        *_, raised = traceback.extract_tb(error.__traceback__)
        if (where := (raised.filename, raised.lineno)) not in self._reported:
            self._reported.add(where)
            self._say(f"{self._name}: {faults.fault_text(error)}")


async def supervise(
    collector: Collector,
    take: Callable[[Sequence[AnyReading]], None],
    say: Callable[[str], None],
) -> None:
    """Take what a collector reports until it ends; restart it after a fault.

    Raises:
        CollectorError: the source failed.
    """
    reporter, pause_s = FaultReporter(name_of(collector), say), FIRST_PAUSE_S
    while True:
        began_ns = monotonic_ns()
        try:
            await _take_all(collector, take, reporter)
        except CollectorError:
            raise
        except Exception as error:  # noqa: BLE001 - other collectors go on
            reporter.report(error)
        else:
            return
        if monotonic_ns() - began_ns > STEADY_NS:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _take_all(
    collector: Collector,
    take: Callable[[Sequence[AnyReading]], None],
    reporter: FaultReporter,
) -> None:
    """Take all batches; an error in ``take`` does not end the collector."""
    async for batch in collector.batches():
        try:
            take(batch)
        except Exception as error:  # noqa: BLE001 - as above
            reporter.report(error)
