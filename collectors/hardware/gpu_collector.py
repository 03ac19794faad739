"""The GPU collector: one thread calls the driver, so the event loop never waits.

It reads once a second, or ten times while a user asks for it. A slow driver is called
less often, because the watched engine shares it.
"""

import asyncio
import atexit
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    GpuProcesses,
    GpuSample,
    Note,
    NoteKind,
)
from collectors.hardware.gpu_source import (
    CLOSELY_HZ,
    GpuOptions,
    GpuSource,
    ReadInterval,
)

BUSY_SHARE = 0.2
"""Largest share of time that driver calls may take."""
SLOW_SWEEPS = 3
"""Slow reads in a row before it is reported."""
MOST_WAITING = 10_000
"""Readings buffered while the event loop is blocked."""
JOIN_S = 3.0
"""Seconds to wait for the thread; a driver call that hangs longer is abandoned."""
SLACK = 0.9
"""Share of a period after which a read is due: timers are never exact."""

Tell = Callable[[Note], None]
MakeSource = Callable[[Callable[[], int], GpuOptions, Tell], GpuSource]


def nvml(now_ns: Callable[[], int], options: GpuOptions, tell: Tell) -> GpuSource:
    """The NVML source; imports pynvml on the thread that uses it."""
    from collectors.hardware.nvml import NvmlSource  # noqa: PLC0415 - 20 ms of a start

    return NvmlSource(now_ns, options, tell)


class GpuCollector:
    """A collector of this host's GPUs; without any it reports why, and waits."""

    def __init__(
        self,
        clock: SessionClock,
        options: GpuOptions | None = None,
        make: MakeSource = nvml,
    ) -> None:
        self.options = options or GpuOptions()
        """May be changed until the first batch."""
        self.known: set[str] = set()
        """Sources that have been read."""
        self._clock, self._make = clock, make
        self._closely = False
        self._over, self._wake = Event(), Event()
        self._thread: Thread | None = None
        self._lock = Lock()
        self._waiting: list[AnyReading] = []
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Read ten times a second from now on, or at the usual rate again."""
        self._closely = on
        self._wake.set()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Batches of readings, each taken as soon as the event loop is free."""
        if self._over.is_set():
            return
        self._loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = Thread(target=self._run, name="gpu", daemon=True)
            atexit.register(self._end)
            self._thread.start()
        while not self._over.is_set():
            await self._ready.wait()
            self._ready.clear()
            if batch := self._taken():
                yield batch

    async def close(self) -> None:
        """Stop the thread, which closes the driver."""
        self._over.set()
        self._ready.set()
        if self._thread is not None:
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        """Wait for the thread, for JOIN_S at most."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
        atexit.unregister(self._end)

    # Runs on the event loop.

    def _taken(self) -> list[AnyReading]:
        with self._lock:
            batch, self._waiting = self._waiting, []
            self.known |= {each.source for each in batch if each.source}
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text = "readings of GPUs came faster than they could be taken"
            now_ns, kind = self._clock.now_ns(), NoteKind.DROPPED
            batch.append(Note(t_ns=now_ns, kind=kind, text=text, count=dropped))
        return batch

    # Runs on the thread.

    def _put(self, *readings: AnyReading) -> None:
        """Queue readings; beyond MOST_WAITING samples are counted as dropped."""
        if not readings or self._loop is None:
            return
        with self._lock:
            for each in readings:
                often = isinstance(each, GpuSample | GpuProcesses)
                if often and len(self._waiting) >= MOST_WAITING:
                    self._dropped += 1
                else:
                    self._waiting.append(each)
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._ready.set)

    def _run(self) -> None:
        source = self._make(self._clock.now_ns, self.options, self._put)
        try:
            self._put(*source.probe())
            self._sweep(source)
        except Exception as error:  # noqa: BLE001 - it is to be seen, and not to hurt
            text = f"GPUs are not read any more: {type(error).__name__}: {error}"
            now_ns = self._clock.now_ns()
            self._put(Note(t_ns=now_ns, kind=NoteKind.GPU, text=text))
        finally:
            source.close()

    def _sweep(self, source: GpuSource) -> None:
        due_s = dict.fromkeys(ReadInterval, 0.0)
        before_s, slow, is_reported = 0.0, 0, False
        while not self._over.is_set():
            began_s = time.monotonic()
            due = {pace for pace in ReadInterval if began_s >= due_s[pace]}
            due_s |= {pace: began_s + SLACK * pace.value for pace in due}
            self._put(*source.read(due))
            took_s = time.monotonic() - began_s
            usual_s = self._period_s()
            # a single stall does not count
            lasting_s, before_s = min(took_s, before_s), took_s
            period_s = max(usual_s, lasting_s / BUSY_SHARE)
            slow = slow + 1 if period_s > usual_s else 0
            if slow == SLOW_SWEEPS and not is_reported:
                is_reported = True
                self._say_slow(lasting_s, period_s)
            self._rest(began_s + period_s, source.idle_s)

    def _period_s(self) -> float:
        rate_hz = CLOSELY_HZ if self._closely else self.options.rate_hz
        return 1 / min(rate_hz, CLOSELY_HZ)

    def _say_slow(self, took_s: float, period_s: float) -> None:
        text = (
            f"the driver takes {1000 * took_s:.0f} ms to tell of the GPUs: it is asked "
            f"every {period_s:.1f} s only, for the engine needs it too"
        )
        now_ns = self._clock.now_ns()
        self._put(Note(t_ns=now_ns, kind=NoteKind.GPU, text=text))

    def _rest(self, until_s: float, idle_s: float | None) -> None:
        """Sleep until the next read or a wake-up; never less than 1 / CLOSELY_HZ."""
        self._wake.clear()
        if self._over.is_set():
            return
        if idle_s is None:
            self._wake.wait()
        elif self._wake.wait(max(until_s - time.monotonic(), idle_s)):
            self._over.wait(1 / CLOSELY_HZ)
