"""The processes of an engine: finding them, their roles, their deaths, ending them."""

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
"""Time from SIGTERM to SIGKILL: vLLM's own shutdown takes 1 to 2 s, rarely 5."""
LAST_WORDS_S = 1.0
"""Time for Python's resource tracker, the last to end, to free shared memory."""
LOOK_S = 0.02
PARENT, SESSION = 1, 3
"""Indices in /proc/PID/stat after the command's closing bracket (proc(5): 4 and 6)."""
EXIT_CODE = 49
"""Index in /proc/PID/stat as above (proc(5): 52)."""
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO_SIZE = 64
PIDFD_GET_INFO = 0xC000FF0B | PIDFD_INFO_SIZE << 16
"""From linux/pidfd.h; not in Python's standard library yet."""
TITLES = {
    "VLLM::APIServer": "api",
    "VLLM::EngineCore": "core",
    "VLLM::Worker": "worker",
}
OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
LOOK_AGAIN_S = 5.0
"""Pause between searches for new processes, which take about 30 ms."""
ROLE_NAMES = {"api": "the API server", "core": "EngineCore", "worker": "a worker"}


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A process, identified by PID and start time because PIDs are reused."""

    pid: int
    birth: int

    @property
    def alive(self) -> bool:
        """Whether the process is running; a zombie is dead."""
        return birth(self.pid) == self.birth

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it is dead."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class EngineProcesses:
    """The processes of an engine: its session, all descendants, and those seen before.

    The session includes orphans, as long as a known process keeps its id from being
    reused; descendants include those that left the session; those seen before include
    both.
    """

    def __init__(self, root: EngineProcess) -> None:
        self.root = root
        self._seen = {root}

    def members(self) -> set[EngineProcess]:
        """The processes that are alive."""
        try:
            stats = dict(_stats())
        except OSError:  # out of file descriptors
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
        """Whether the Unix session is still the engine's; its id may be reused."""
        root = stats.get(self.root.pid)
        return (root is not None and root[BIRTH] == self.root.birth) or any(
            member.alive and stats[member.pid][SESSION] == self.root.pid
            for member in self._seen
            if member.pid in stats
        )

    def roles(self) -> dict[EngineProcess, str]:
        """API servers, EngineCores and workers; other processes have no role."""
        roles = {member: self._role(member) for member in self.members()}
        return {member: role for member, role in roles.items() if role is not None}

    def computing(self) -> int:
        """Number of processes that compute, or spin waiting for a GPU or worker."""
        return sum(role != "api" for role in self.roles().values())

    def _role(self, member: EngineProcess) -> str | None:
        if member == self.root:
            return "api"
        title = command_line(member.pid)
        return next((TITLES[head] for head in TITLES if title.startswith(head)), None)

    async def end(self) -> None:
        """End all processes, cleanly if that is quick."""
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
        """Wait until all processes are dead; False after ``seconds``."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + seconds
        while self.members():
            if clock() > deadline_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True


def command_line(pid: int) -> str:
    """The command line of a process, or its title; empty once it is dead."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def exit_status(pid: int, pidfd: int) -> int | None:
    """Exit status of a dead process, in the form of :class:`subprocess.Popen`.

    A zombie has it in /proc; afterwards a pidfd has it, from Linux 6.15.
    """
    with suppress(OSError):
        stat = _stat(pid)
        if stat is not None and stat[0] == ord("Z"):
            return os.waitstatus_to_exitcode(stat[EXIT_CODE])
    info = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_SIZE, b"\0"))
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        mask, status = struct.unpack_from("=Q52xi", info)
        if mask & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    return None


def _stats() -> Iterable[tuple[int, list[int]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def _stat(pid: int) -> list[int] | None:
    """The fields of /proc/PID/stat from the state on; None once the process is dead.

    The state is given as the code of its letter.

    Raises:
        OSError: out of file descriptors.
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
class ProcessDeath:
    """The process that died, and its exit status where known."""

    role: str
    pid: int
    status: int | None
    """As in Popen: the exit status, or minus the signal's number."""

    def __str__(self) -> str:
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
        """Whether a signal from outside ended the process: no log explains that."""
        return self.status is not None and -self.status in OUTSIDE


class DeathWatch:
    """Notices the death of processes at once, by a pidfd for each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._descriptors: dict[EngineProcess, int] = {}
        self.died: asyncio.Future[ProcessDeath] = self._loop.create_future()

    def add(self, member: EngineProcess, role: str) -> None:
        if member in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(member.pid)
        except ProcessLookupError:
            self._note(ProcessDeath(role, member.pid, None))
            return
        except OSError:  # out of file descriptors; it is retried
            return
        self._descriptors[member] = descriptor
        self._loop.add_reader(descriptor, self._died, member.pid, role, descriptor)

    def _died(self, pid: int, role: str, descriptor: int) -> None:
        self._note(ProcessDeath(role, pid, exit_status(pid, descriptor)))

    def _note(self, death: ProcessDeath) -> None:
        if not self.died.done():
            self.died.set_result(death)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


async def first_death(family: EngineProcesses) -> ProcessDeath:
    """Wait until a process with a role dies.

    It is noticed at once, while vLLM's own watchdog polls every 5 s. The exit status of
    our own child is always known, that of others only where the kernel has it.
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
