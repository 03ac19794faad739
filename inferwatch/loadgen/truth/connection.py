"""One client's connection to the truth server: bytes in, requests out, bytes back."""

import socket
from collections.abc import Iterator

from collectors.clock import monotonic_ns
from inferwatch.loadgen.exchange.receive_stamps import ANCILLARY_BYTES, ReceiveStamps
from inferwatch.loadgen.truth.script import Answer, Beat, Manner, Script

READ_BYTES = 1 << 16


class Connection:
    """What has come, what has to go, and the answer being played."""

    def __init__(self, peer: socket.socket) -> None:
        peer.settimeout(0)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.open = True
        self.arrived_ns = 0
        """When the kernel had the beginning of what comes now."""
        self.going = bytearray()
        """What did not fit into the socket."""
        self.answer: Answer | None = None
        self.manner: Manner | None = None
        self.script: Script | None = None
        self.beats: Iterator[Beat] = iter(())
        self.beat: Beat | None = None
        self._coming = bytearray()

    def read(self, receive_stamps: ReceiveStamps) -> bool:
        """Take what has come; False: the client is gone."""
        try:
            data, ancillary, _, _ = self.peer.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except OSError:
            return False
        if not self._coming:
            self.arrived_ns = receive_stamps.by_kernel(ancillary) or monotonic_ns()
        self._coming += data
        return bool(data)

    def request(self) -> tuple[str, dict[str, str], bytes] | None:
        """Path, headers and body of the next whole request, taken out."""
        head, found, _ = self._coming.partition(b"\r\n\r\n")
        if not found:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        end = len(head) + 4 + int(headers.get("content-length", 0))
        if len(self._coming) < end:
            return None
        body = bytes(self._coming[len(head) + 4 : end])
        del self._coming[:end]
        return first.split(" ")[1], headers, body

    def say(self, data: bytes) -> bool:
        """Send, or keep in ``going`` what does not fit; False: the client is gone."""
        if self.going or not data:
            self.going += data
            return True
        try:
            sent = self.peer.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        self.going += data[sent:]
        return True

    def flush(self) -> bool:
        """Send what did not fit before; False: the client is gone."""
        data = bytes(self.going)
        self.going.clear()
        return self.say(data)
