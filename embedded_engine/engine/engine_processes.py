"""The processes of one engine: who belongs to it, what each is, and how all end."""

import asyncio
import fcntl
import os
import signal
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collectors.contract.liveness import BIRTH, OUT_OF_DESCRIPTORS, birth

GRACE_S = 2.5
"""From SIGTERM to SIGKILL: vLLM's own clean end takes 1-2 s, rarely 5."""
LAST_WORDS_S = 1.0
"""For Python's resource tracker, which outlives the others to remove shared memory."""
LOOK_S = 0.02
PARENT, SESSION = 1, 3
"""Places in /proc/PID/stat after the command's closing bracket (proc(5): 4 and 6)."""
EXIT_CODE = 49
"""Likewise (52)."""
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO_SIZE = 64
PIDFD_GET_INFO = 0xC000FF0B | PIDFD_INFO_SIZE << 16
"""From linux/pidfd.h; Python does not know them yet."""
TITLES = {
    "VLLM::APIServer": "api",
    "VLLM::EngineCore": "core",
    "VLLM::Worker": "worker",
}
OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LOOK_AGAIN_S = 5.0
"""How often to look for processes that were started since; it costs some 30 ms."""
ROLE_NAMES = {"api": "the API server", "core": "EngineCore", "worker": "a worker"}


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One process, known by pid and birth: a pid alone may come again."""

    pid: int
    birth: int

    @property
    def alive(self) -> bool:
        """Still running; a zombie is dead."""
        return birth(self.pid) == self.birth

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is gone."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class EngineProcesses:
    """An engine's processes: its session, all descendants, and who was seen before.

    The session finds what lost its parent, while somebody known keeps its number from
    coming again; the descendants who left the session; the memory who did both.
    """

    def __init__(self, root: EngineProcess) -> None:
        self.root = root
        self._seen = {root}

    def members(self) -> set[EngineProcess]:
        """The processes that live now."""
        try:
            stats = dict(_stats())
        except OSError:  # no descriptor is left to look for others
            return {member for member in self._seen if member.alive}
        ours = {m.pid for m in self._seen if m.pid in stats and m.alive}
        if self._session_is_ours(stats):
            session = self.root.pid
            ours |= {pid for pid, stat in stats.items() if stat[SESSION] == session}
        while newborn := {
            pid
            for pid, stat in stats.items()
            if stat[PARENT] in ours and pid not in ours
        }:
            ours |= newborn
        births = {pid: birth(pid) for pid in ours}
        living = {
            EngineProcess(pid, born) for pid, born in births.items() if born is not None
        }
        self._seen |= living
        return living

    def _session_is_ours(self, stats: Mapping[int, list[int]]) -> bool:
        """Its number comes again once the root is buried and the session empty."""
        root = stats.get(self.root.pid)
        return (root is not None and root[BIRTH] == self.root.birth) or any(
            member.alive and stats[member.pid][SESSION] == self.root.pid
            for member in self._seen
            if member.pid in stats
        )

    def roles(self) -> dict[EngineProcess, str]:
        """API servers, EngineCores and workers; helpers have no role."""
        roles = {member: self._role(member) for member in self.members()}
        return {member: role for member, role in roles.items() if role is not None}

    def computing(self) -> int:
        """How many of them compute or, waiting for a GPU or a worker, spin."""
        return sum(role != "api" for role in self.roles().values())

    def _role(self, member: EngineProcess) -> str | None:
        if member == self.root:
            return "api"
        title = command_line(member.pid)
        return next((TITLES[head] for head in TITLES if title.startswith(head)), None)

    async def end(self) -> None:
        """End them all, cleanly if they do so soon."""
        members = self.members()
        for member in [self.root] if self.root in members else members:
            member.signal(signal.SIGTERM)
        if await self.gone_within(GRACE_S):
            return
        for member in self.members():
            if "resource_tracker" not in command_line(member.pid):
                member.signal(signal.SIGKILL)
        if await self.gone_within(LAST_WORDS_S):
            return
        for member in self.members():
            member.signal(signal.SIGKILL)
        await self.gone_within(LAST_WORDS_S)

    async def gone_within(self, seconds: float) -> bool:
        """Wait at most so long until the last is gone; whether it is."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + seconds
        while self.members():
            if clock() > deadline_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def command_line(pid: int) -> str:
    """What a process calls itself; empty once it is dead."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def exit_status(pid: int, pidfd: int) -> int | None:
    """How a dead process ended, as :class:`subprocess.Popen` puts it: minus the signal.

    While its parent has not looked, /proc has it; after that a pidfd, from Linux 6.15.
    """
    with suppress(OSError):
        stat = _stat(pid)
        if stat is not None and stat[0] == ord("Z"):
            return os.waitstatus_to_exitcode(stat[EXIT_CODE])
    info = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_SIZE, b"\0"))
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        known, status = struct.unpack_from("=Q52xi", info)
        if known & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    return None


def _stats() -> Iterable[tuple[int, list[int]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def _stat(pid: int) -> list[int] | None:
    """The fields of /proc/PID/stat from the state on; that one as a letter's code.

    Raises:
        OSError: no descriptor is left to look with.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
        return None
    state, *numbers = text.rpartition(")")[2].split()
    return [ord(state), *map(int, numbers)]


@dataclass(frozen=True, slots=True)
class Death:
    """Which process died, and how, if that could be seen."""

    role: str
    pid: int
    status: int | None
    """As Popen puts it: exit status, or minus the signal's number."""

    def __str__(self) -> str:
        """The death in words fit to show."""
        return f"{ROLE_NAMES[self.role]} (pid {self.pid}) {self._how()}"

    def _how(self) -> str:
        if self.status is None:
            return "is gone"
        if self.status >= 0:
            return f"ended with status {self.status}"
        name = signal.Signals(-self.status).name
        hint = " (by hand, or because memory ran out)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    @property
    def from_outside(self) -> bool:
        """Somebody ended it, so the log cannot know why."""
        return self.status is not None and -self.status in OUTSIDE


class DeathWatch:
    """Notices the death of any process at once, by a pidfd on each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[EngineProcess, int] = {}
        self.died: asyncio.Future[Death] = self._loop.create_future()

    def add(self, member: EngineProcess, role: str) -> None:
        """Watch one more process."""
        if member in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(member.pid)
        except ProcessLookupError:
            self._note(Death(role, member.pid, None))
            return
        except OSError:  # no descriptor is left: it is tried again
            return
        self._descriptors[member] = descriptor
        self._loop.add_reader(descriptor, self._died, member.pid, role, descriptor)

    def _died(self, pid: int, role: str, descriptor: int) -> None:
        self._note(Death(role, pid, exit_status(pid, descriptor)))

    def _note(self, death: Death) -> None:
        if not self.died.done():
            self.died.set_result(death)

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._descriptors.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


async def first_death(family: EngineProcesses) -> Death:
    """Wait until a process with a role dies.

    It is known at once, where vLLM's own watchdog looks every 5 s. How it died is
    always known of our own child, of the others where the kernel tells.
    """
    watch = DeathWatch()
    try:
        watch.add(family.root, "api")
        while not watch.died.done():
            for member, role in family.roles().items():
                watch.add(member, role)
            await asyncio.wait([watch.died], timeout=LOOK_AGAIN_S)
        return watch.died.result()
    finally:
        watch.close()
