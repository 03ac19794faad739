"""Notices the death of any process of an engine, at once and for next to nothing."""

import asyncio
import os
import signal
from dataclasses import dataclass

from embedded_engine.family import ROLE_NAMES, Family, Member, exit_status

OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LOOK_AGAIN_S = 5.0
"""How often to look for processes that were started since; it costs some 30 ms."""


@dataclass(frozen=True, slots=True)
class Death:
    """Who died, and how if it could be seen."""

    role: str
    pid: int
    status: int | None
    """As Popen puts it: exit status, or minus the signal's number."""

    def __str__(self) -> str:
        """As people are told."""
        return f"{ROLE_NAMES[self.role]} (pid {self.pid}) {self._how()}"

    def _how(self) -> str:
        if self.status is None:
            return "is gone"
        if self.status >= 0:
            return f"ended with status {self.status}"
        name = signal.Signals(-self.status).name
        hint = " (by hand, or for lack of memory)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    @property
    def from_outside(self) -> bool:
        """Somebody ended it, so the log cannot know why."""
        return self.status is not None and -self.status in OUTSIDE


class Watch:
    """A pidfd on every process: it becomes readable in the instant of the death."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[Member, int] = {}
        self.died: asyncio.Future[Death] = self._loop.create_future()

    def add(self, member: Member, role: str) -> None:
        """Watch one more."""
        if member in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(member.pid)
        except ProcessLookupError:
            self._note(Death(role, member.pid, None))
            return
        self._descriptors[member] = descriptor
        self._loop.add_reader(descriptor, self._died, member.pid, role, descriptor)

    def _died(self, pid: int, role: str, descriptor: int) -> None:
        self._note(Death(role, pid, exit_status(pid, descriptor)))

    def _note(self, death: Death) -> None:
        if not self.died.done():
            self.died.set_result(death)

    def close(self) -> None:
        """Watch no more."""
        for descriptor in self._descriptors.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


async def first_death(family: Family) -> Death:
    """Wait until a process with a role dies.

    It is known at once, where vLLM's own watchdog looks every 5 s. How it died is
    always known of our own child, of the others where the kernel tells.
    """
    watch = Watch()
    try:
        watch.add(family.root, "api")
        while not watch.died.done():
            for member, role in family.roles().items():
                watch.add(member, role)
            await asyncio.wait([watch.died], timeout=LOOK_AGAIN_S)
        return watch.died.result()
    finally:
        watch.close()
