"""When reads from sockets happened, by the kernel where it tells, and how late we were.

The kernel stamps a packet when it arrives (``SO_TIMESTAMPNS``), however busy we are
then. Its stamps are wall time; an anchor that is read again and again makes them
monotonic, so that a stepped wall clock does not reach a measurement.
"""

import socket
import struct

from collectors.contract.clock import NS_PER_S, monotonic_ns, wall_offset_ns

SO_TIMESTAMPNS = 35  # asm-generic; the socket module does not name it
ANCILLARY_BYTES = socket.CMSG_SPACE(16)
SUSPECT_NS = 50_000_000
"""A read this late may be a wall clock that was stepped: look at the anchor again."""

_timespec = struct.Struct("qq")


class ReceiveStamps:
    """When reads arrived, how many there were, and how late we made each of them."""

    def __init__(self) -> None:
        self.reads = 0
        self.lags_ns: list[int] = []
        """From the kernel's stamp of a read to ours, since they were last taken."""
        self._offset_ns = 0
        self.anchor()

    def anchor(self) -> None:
        """Relate wall and monotonic clock anew; the tightest of five tries."""
        tries = []
        for _ in range(5):
            before_ns = monotonic_ns()
            offset_ns = wall_offset_ns()
            tries.append((monotonic_ns() - before_ns, offset_ns))
        self._offset_ns = min(tries)[1]

    def by_kernel(self, ancillary: list[tuple[int, int, bytes]]) -> int | None:
        """The monotonic moment at which a read had arrived; None without a stamp.

        Of several packets that were read at once, it is the last one's.
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
        """The lags since they were last taken."""
        taken, self.lags_ns = self.lags_ns, []
        return taken


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives, where it can."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return  # reads then come without a stamp
