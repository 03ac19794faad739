"""Runs what ``--on-alert`` names: an argument list, without any shell.

The session never waits for it: it has its time, and what goes wrong is a note.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import msgspec

from inferwatch.visible import visible

PATIENCE_S = 30.0
LAST_PATIENCE_S = 3.0
"""When the session ends meanwhile."""
MOST_AT_ONCE = 8
MOST_SAID = 200
"""Characters of its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A rule that began to hold."""

    rule: str
    """As it was written."""
    sentence: str
    session: str
    """Its id in the record; empty where nothing is recorded."""
    time: str
    """ISO 8601, with the zone."""
    session_s: float
    """Seconds into that session."""

    def environment(self) -> dict[str, str]:
        """What the command finds in its variables."""
        return {
            "INFERWATCH_ALERT_RULE": self.rule,
            "INFERWATCH_ALERT_SENTENCE": self.sentence,
            "INFERWATCH_ALERT_SESSION": self.session,
            "INFERWATCH_ALERT_SESSION_S": str(self.session_s),
            "INFERWATCH_ALERT_TIME": self.time,
        }

    def json(self) -> bytes:
        """What it can read, a line of JSON."""
        return msgspec.json.encode(asdict(self)) + b"\n"


class OnAlert:
    """Runs a command for each alert, a few at a time."""

    def __init__(
        self,
        command: Sequence[str],
        trouble: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``trouble`` is told what went wrong."""
        self._command = command
        self._trouble = trouble
        self._patience_s = patience_s
        self._running: set[asyncio.Task[None]] = set()

    def run(self, alert: Alert) -> None:
        """Begin it, and go on."""
        if len(self._running) >= MOST_AT_ONCE:
            self._say(f"was not run: {MOST_AT_ONCE} of it still run")
            return
        task = asyncio.create_task(self._run(alert))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Give what runs a last while, then end it."""
        if self._running:
            await asyncio.wait(self._running, timeout=LAST_PATIENCE_S)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, alert: Alert) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **alert.environment()},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._say(f"did not start: {error}")
            return
        try:
            async with asyncio.timeout(self._patience_s):
                said = await _told(process, alert.json())
        except TimeoutError:
            self._say(f"took longer than {self._patience_s:.0f} s and was ended")
        else:
            if process.returncode:
                self._say(f"ended with status {process.returncode}{_last(said)}")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def _say(self, what: str) -> None:
        self._trouble(f"the command of --on-alert {what}")


async def _told(process: asyncio.subprocess.Process, facts: bytes) -> bytes:
    """Give it the alert, and hear its end: the last of what it complained of."""
    if process.stdin is None or process.stderr is None:
        raise ValueError("it has no pipes")
    with suppress(OSError):  # it need not read
        process.stdin.write(facts)
        await process.stdin.drain()
        process.stdin.close()
    said = b""
    while more := await process.stderr.read(4096):
        said = (said + more)[-MOST_SAID:]
    await process.wait()
    return said


def _last(said: bytes) -> str:
    text = visible(" ".join(said.decode(errors="replace").split()))
    return f": {text}" if text else ""
