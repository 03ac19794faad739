"""Starts and stops the load generator's process."""

import asyncio
import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import LoadPlan

STOP_S = 3.0
"""The generator ends within two seconds of SIGTERM; after this comes SIGKILL."""


class LoadProcess:
    """The generator as a child process, which follows a plan and ends with us."""

    def __init__(
        self, log_path: Path | None = None, ca_file: Path | None = None
    ) -> None:
        self._log_path = log_path
        self._ca_file = ca_file
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, plan: LoadPlan, address: str) -> None:
        """Start the generator; it sends readings to the socket bound at ``address``."""
        # Opening a local file takes microseconds, so it needs no thread.
        with Path(self._log_path or os.devnull).open("ab") as log:  # noqa: ASYNC230
            with suppress(OSError):  # the lock keeps log clean-up from removing it
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "inferwatch.loadgen",
                address,
                "--parent",
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # leaves Ctrl-C to us
                env=self._environment(),
            )
        await self._say(plan)

    def _environment(self) -> dict[str, str] | None:
        if self._ca_file is None:
            return None
        return {**os.environ, "SSL_CERT_FILE": str(self._ca_file)}

    async def change(self, change: Change) -> None:
        """Change the load from now on; ignored if the generator has ended."""
        await self._say(change)

    async def wait(self) -> int:
        """Wait for the end; 0 when the plan was followed or the run was stopped.

        3 when no token came back in the warm-up.
        """
        return await self._process.wait() if self._process else 0

    async def stop(self) -> None:
        """Stop sending and abort requests in flight, within STOP_S seconds."""
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_S)
        finally:
            if self._process.returncode is None:  # too slow, or we were cancelled
                self._process.kill()
                await self._process.wait()

    async def _say(self, what: LoadPlan | Change) -> None:
        """Write a plan or change as a line to the generator's standard input."""
        stdin = self._process.stdin if self._process else None
        if stdin is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # its exit status tells
            stdin.write(msgspec.json.encode(what) + b"\n")
            await stdin.drain()
