"""Runs the command of ``--on-alert``, an argument list, without a shell.

The session never waits for it: it has a time limit, and its failures become notes.
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
"""The time limit once the session ends."""
MOST_AT_ONCE = 8
MOST_SAID = 200
"""The last characters of its standard error that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """The facts about a rule that began to hold, for the alert command."""

    rule: str
    """The rule as the user wrote it."""
    sentence: str
    session: str
    """The session's id in the record; empty when nothing is recorded."""
    time: str
    """ISO 8601, with the UTC offset."""
    session_s: float
    """Seconds from the start of that session."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the command."""
        return {
            "INFERWATCH_ALERT_RULE": self.rule,
            "INFERWATCH_ALERT_SENTENCE": self.sentence,
            "INFERWATCH_ALERT_SESSION": self.session,
            "INFERWATCH_ALERT_SESSION_S": str(self.session_s),
            "INFERWATCH_ALERT_TIME": self.time,
        }

    def json(self) -> bytes:
        """Return it as one line of JSON, for the command's standard input."""
        return msgspec.json.encode(asdict(self)) + b"\n"


class OnAlert:
    """Runs a command for each alert, a few at a time."""

    def __init__(
        self,
        command: Sequence[str],
        trouble: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``trouble`` is called with what went wrong."""
        self._command = command
        self._trouble = trouble
        self._patience_s = patience_s
        self._running: set[asyncio.Task[None]] = set()

    def run(self, alert: Alert) -> None:
        """Start the command in the background."""
        if len(self._running) >= MOST_AT_ONCE:
            self._say(f"was not run: {MOST_AT_ONCE} of it still run")
            return
        task = asyncio.create_task(self._run(alert))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Let running commands finish for a moment, then kill them."""
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
                stderr = await _communicate(process, alert.json())
        except TimeoutError:
            self._say(f"took longer than {self._patience_s:.0f} s and was ended")
        else:
            if process.returncode:
                self._say(f"ended with status {process.returncode}{_last(stderr)}")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    def _say(self, what: str) -> None:
        self._trouble(f"the command of --on-alert {what}")


async def _communicate(process: asyncio.subprocess.Process, facts: bytes) -> bytes:
    """Write the alert to the command, wait for it, return the end of its stderr."""
    if process.stdin is None or process.stderr is None:
        raise ValueError("it has no pipes")
    with suppress(OSError):  # the command need not read it
        process.stdin.write(facts)
        await process.stdin.drain()
        process.stdin.close()
    stderr = b""
    while more := await process.stderr.read(4096):
        stderr = (stderr + more)[-MOST_SAID:]
    await process.wait()
    return stderr


def _last(stderr: bytes) -> str:
    text = visible(" ".join(stderr.decode(errors="replace").split()))
    return f": {text}" if text else ""
