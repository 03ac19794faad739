"""Arrival times of socket reads, by the kernel where possible, and our delay.

The kernel stamps a packet on arrival (``SO_TIMESTAMPNS``), however busy we are. Its
stamps are wall time; an anchor that is renewed regularly converts them to monotonic
time, so that a stepped wall clock does not affect measurements.
"""

import socket
import struct

from collectors.contract.clock import NS_PER_S, monotonic_ns, wall_offset_ns

SO_TIMESTAMPNS = 35  # asm-generic; missing in the socket module
ANCILLARY_BYTES = socket.CMSG_SPACE(16)
SUSPECT_NS = 50_000_000
"""A read this late may mean that the wall clock was stepped: renew the anchor."""

_timespec = struct.Struct("qq")


class ReceiveStamps:
    """Arrival times, number and delays of reads."""

    def __init__(self) -> None:
        self.reads = 0
        self.lags_ns: list[int] = []
        """From the kernel's stamp to our read, since last taken."""
        self._offset_ns = 0
        self.anchor()

    def anchor(self) -> None:
        """Relate wall and monotonic clock anew, by the tightest of five tries."""
        tries = []
        for _ in range(5):
            before_ns = monotonic_ns()
            offset_ns = wall_offset_ns()
            tries.append((monotonic_ns() - before_ns, offset_ns))
        self._offset_ns = min(tries)[1]

    def by_kernel(self, ancillary: list[tuple[int, int, bytes]]) -> int | None:
        """Monotonic arrival time of a read; None without a kernel stamp.

        If a read covers several packets, it is that of the last.
        """
        self.reads += 1
        if not ancillary:
            return None
        seconds, rest_ns = _timespec.unpack(ancillary[0][2])
        now_ns = monotonic_ns()
        stamp_ns: int = seconds * NS_PER_S + rest_ns - self._offset_ns
        lag_ns = now_ns - stamp_ns
        if not 0 <= lag_ns < SUSPECT_NS:
            self.anchor()
            stamp_ns = seconds * NS_PER_S + rest_ns - self._offset_ns
            lag_ns = max(now_ns - stamp_ns, 0)
        self.lags_ns.append(lag_ns)
        return now_ns - lag_ns

    def take_lags(self) -> list[int]:
        """Return and forget the lags, from a packet's arrival to our read, in ns."""
        lags, self.lags_ns = self.lags_ns, []
        return lags


def ask_for_stamps(sock: socket.socket) -> None:
    """Ask the kernel to stamp arriving packets, if it can."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return  # reads then have no stamp
