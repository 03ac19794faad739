"""Notes of Xid and uncorrectable ECC errors, from NVML events.

A thread waits for events. Errors before it started are not reported.
"""

from collections.abc import Callable, Mapping
from ctypes import c_void_p, cast
from threading import Event, Thread
from typing import Any

import pynvml

from collectors.contract.readings import Note, NoteKind
from collectors.hardware.nvml_errors import FAILURES, GONE, TIMEOUT, code_of

WAIT_MS = 500
AFTER_ERROR_S = 5.0
JOIN_S = 2.0
XID = pynvml.nvmlEventTypeXidCriticalError
DOUBLE_BIT = pynvml.nvmlEventTypeDoubleBitEccError
MOST_TOLD = 20
"""Notes per GPU and Xid; a failing GPU can report thousands."""
XIDS = {
    13: "a kernel made an illegal access",
    31: "a kernel touched memory that is not mapped",
    43: "a program's work was stopped after an error of its own",
    45: "a program's work was stopped",
    48: "uncorrectable memory error",
    61: "internal fault: the GPU may hang",
    62: "internal fault: the GPU may hang",
    63: "a bad memory row was remapped: reset the GPU when it is idle",
    64: "a bad memory row could not be remapped: replace the GPU",
    74: "NVLink error",
    79: "the GPU has fallen off the bus: reset it or reboot",
    92: "many corrected memory errors",
    94: "a memory error ended the program that it hit",
    95: "a memory error may have hit all programs: reset the GPU",
    119: "the GPU's own processor does not answer: reset the GPU",
    120: "the GPU's own processor failed: reset the GPU",
}
"""Short explanations of frequent Xids."""


class EventWatch:
    """Turns NVML events into notes until stopped."""

    def __init__(
        self,
        gpus: Mapping[str, tuple[str, Any]],
        now_ns: Callable[[], int],
        tell: Callable[[Note], None],
    ) -> None:
        """``gpus``: name and handle by UUID; ``tell`` is called from the thread."""
        self._gpus = {
            _address(handle): (uuid, called) for uuid, (called, handle) in gpus.items()
        }
        self._now_ns, self._tell = now_ns, tell
        self._counts: dict[tuple[str, int], int] = {}
        self._over = Event()
        self._set: Any = None
        self.tells_double_bits = self._registers(gpus)
        """UUIDs of GPUs that send double-bit ECC events."""
        self._thread = Thread(target=self._run, name="gpu events", daemon=True)
        if self._set is not None:
            self._thread.start()

    def stop(self) -> bool:
        """Stop before NVML is shut down; False if a call does not return."""
        self._over.set()
        if self._set is None:
            return True
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            return False
        _quietly(pynvml.nvmlEventSetFree, self._set)
        self._set = None
        return True

    def _registers(self, gpus: Mapping[str, tuple[str, Any]]) -> frozenset[str]:
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except FAILURES:
            return frozenset()
        registered = set()
        for uuid, (_, handle) in gpus.items():
            mask = _quietly(pynvml.nvmlDeviceGetSupportedEventTypes, handle) or 0
            mask &= XID | DOUBLE_BIT
            if mask and self._register(handle, mask):
                registered.add((uuid, mask))
        if not registered:
            _quietly(pynvml.nvmlEventSetFree, self._set)
            self._set = None
        return frozenset(uuid for uuid, mask in registered if mask & DOUBLE_BIT)

    def _register(self, handle: Any, mask: int) -> bool:
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, mask, self._set)
        except FAILURES:
            return False
        return True

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
            except FAILURES as error:
                code = code_of(error)
                if code in GONE:
                    return
                if code != TIMEOUT:
                    self._over.wait(AFTER_ERROR_S)  # a lost GPU makes every wait fail
                continue
            self._note(event)

    def _note(self, event: Any) -> None:
        uuid, called = self._gpus.get(_address(event.device), ("", "a GPU"))
        xid = int(event.eventData) if event.eventType & XID else -1
        times = self._counts[uuid, xid] = self._counts.get((uuid, xid), 0) + 1
        if times > MOST_TOLD:
            return
        text = f"{called}: uncorrectable memory error"
        if xid >= 0:
            text = f"{called}: Xid {xid}"
            text += f": {XIDS[xid]}" if xid in XIDS else ""
        if times == MOST_TOLD:
            text += "; further ones are not noted"
        now_ns = self._now_ns()
        self._tell(Note(source=uuid, t_ns=now_ns, kind=NoteKind.GPU, text=text))


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


def _quietly(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except FAILURES:
        return None
