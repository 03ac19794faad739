"""A completions server with a fixed schedule that logs every send.

``python -m inferwatch.loadgen.truth.server [--uds PATH]`` prints its address as JSON.
The model's name selects the response, see :mod:`inferwatch.loadgen.truth.script`. ``GET
/log`` returns, per request, when it was received and when each token was sent, on the
monotonic clock all processes share.

It has one thread and no event loop, whose timers have a resolution of a millisecond. It
sleeps in ``select`` on the selector's own descriptor, which wakes within about 50 µs.
"""

import argparse
import heapq
import json
import select
import selectors
import socket
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectors.contract.clock import NS_PER_S, monotonic_ns
from inferwatch.loadgen.exchange.receive_stamps import (
    ANCILLARY_BYTES,
    ReceiveStamps,
    ask_for_stamps,
)
from inferwatch.loadgen.truth.script import (
    DEFAULT_MODEL,
    NEVER_NS,
    ResponseOptions,
    ResponseScript,
    ScheduledBytes,
    TruthResponse,
    options_of,
    whole,
)

BACKLOG = 1024
READ_BYTES = 1 << 16


class TruthConnection:
    """A client's connection: its input, its output, and the current response."""

    def __init__(self, peer: socket.socket) -> None:
        peer.settimeout(0)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.open = True
        self.arrived_ns = 0
        """When the kernel received the start of the current input."""
        self.going = bytearray()
        """Output that did not fit into the socket."""
        self.answer: TruthResponse | None = None
        self.options: ResponseOptions | None = None
        self.script: ResponseScript | None = None
        self.parts: Iterator[ScheduledBytes] = iter(())
        self.part: ScheduledBytes | None = None
        self._coming = bytearray()

    def read(self, receive_stamps: ReceiveStamps) -> bool:
        """Read input; False if the client disconnected."""
        try:
            data, ancillary, _, _ = self.peer.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except OSError:
            return False
        if not self._coming:
            self.arrived_ns = receive_stamps.by_kernel(ancillary) or monotonic_ns()
        self._coming += data
        return bool(data)

    def request(self) -> tuple[str, dict[str, str], bytes] | None:
        """Remove and return the next complete request: path, headers and body."""
        head, separator, _ = self._coming.partition(b"\r\n\r\n")
        if not separator:
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
        """Send, keeping in ``going`` what does not fit; False if disconnected."""
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
        """Send what did not fit before; False if disconnected."""
        data = bytes(self.going)
        self.going.clear()
        return self.say(data)


class TruthServer:
    """Serves completions on one listening socket, by schedule, and logs each send."""

    def __init__(self, listener: socket.socket) -> None:
        self.log: list[TruthResponse] = []
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._due: list[tuple[int, int, TruthConnection]] = []
        self._order = 0
        self._receive_stamps = ReceiveStamps()
        ask_for_stamps(listener)  # inherited by its connections
        self._busy: Counter[ResponseOptions] = Counter()
        self._queues: dict[ResponseOptions, deque[TruthConnection]] = defaultdict(deque)

    def serve(self) -> None:
        while True:
            self._wait()
            for key, events in self._selector.select(0):
                self._ready(key, events)
            self._send_due()

    def _wait(self) -> None:
        """Wait until something arrives or is due, to the microsecond."""
        left_s = None
        if self._due and self._due[0][0] < NEVER_NS:
            left_s = max(self._due[0][0] - monotonic_ns(), 0) / NS_PER_S
        select.select([self._selector], [], [], left_s)

    def _ready(self, key: selectors.SelectorKey, events: int) -> None:
        if key.data is None:
            self._accept()
            return
        if events & selectors.EVENT_WRITE:
            self._write(key.data)
        if events & selectors.EVENT_READ and key.data.open:
            self._read(key.data)

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        self._selector.register(peer, selectors.EVENT_READ, TruthConnection(peer))

    def _read(self, connection: TruthConnection) -> None:
        if not connection.read(self._receive_stamps):
            self._close(connection)
        elif connection.answer is None:
            self._next(connection)

    def _next(self, connection: TruthConnection) -> None:
        """Respond to the connection's next request, if it has arrived."""
        request = connection.request()
        if request is None:
            return
        path, headers, body = request
        if path.endswith("/completions"):
            self._begin(connection, path, headers, json.loads(body))
        elif body:
            self._say(connection, whole("404 Not Found", b"not here"))
        else:
            self._say(connection, whole("200 OK", self._get(path).encode()))

    def _get(self, path: str) -> str:
        if path == "/log":
            return json.dumps([answer.told() for answer in self.log])
        if path == "/v1/models":
            return json.dumps({"object": "list", "data": [{"id": DEFAULT_MODEL}]})
        return self._gauges() if path == "/metrics" else "{}"

    def _gauges(self) -> str:
        """Gauges of the queue, by vLLM's names."""
        running = sum(self._busy.values())
        waiting = sum(len(queue) for queue in self._queues.values())
        name = "vllm:num_requests"
        return f"{name}_running {running}.0\n{name}_waiting {waiting}.0\n"

    def _begin(
        self,
        connection: TruthConnection,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
    ) -> None:
        chat = path.endswith("/chat/completions")
        prompt = body.pop("messages" if chat else "prompt")
        connection.answer = TruthResponse(
            request_id=headers.get("x-request-id", ""),
            arrived_ns=connection.arrived_ns,
            received_ns=monotonic_ns(),
            prompt=prompt,
            max_tokens=body.get("max_tokens") or body["max_completion_tokens"],
            body=body,
            headers=headers,
            chat=chat,
        )
        self.log.append(connection.answer)
        connection.options = options = options_of(str(body["model"]))
        if options.slots and self._busy[options] >= options.slots:
            self._queues[options].append(connection)
        else:
            self._start(connection, options)

    def _start(self, connection: TruthConnection, options: ResponseOptions) -> None:
        answer = connection.answer
        if answer is None:
            return
        self._busy[options] += 1
        answer.started_ns = monotonic_ns()
        connection.script = ResponseScript(answer, options)
        connection.parts = connection.script.parts()
        self._schedule(connection)

    def _schedule(self, connection: TruthConnection) -> None:
        connection.part = next(connection.parts, None)
        if connection.part is None:
            self._end(connection)
            return
        self._order += 1
        due_ns = connection.part.due_ns or monotonic_ns()
        heapq.heappush(self._due, (due_ns, self._order, connection))

    def _send_due(self) -> None:
        """Send what is due, each connection once, so that a flood delays no other."""
        now_ns = monotonic_ns()
        ready = []
        while self._due and self._due[0][0] <= now_ns:
            ready.append(heapq.heappop(self._due)[2])
        for connection in ready:
            part, answer = connection.part, connection.answer
            if not connection.open or part is None or answer is None:
                continue
            answer.sent_ns += [monotonic_ns()] * part.tokens
            self._say(connection, part.data)
            if connection.open:
                self._schedule(connection)

    def _end(self, connection: TruthConnection) -> None:
        keep = connection.script is not None and connection.script.keep
        self._free(connection)
        connection.answer = connection.script = None
        if keep:
            self._next(connection)
        else:
            self._close(connection)

    def _free(self, connection: TruthConnection) -> None:
        """Free the slot, and give it to the connection waiting longest."""
        options, connection.options = connection.options, None
        if options is None or connection.script is None:
            return
        self._busy[options] -= 1
        queue = self._queues[options]
        while queue and self._busy[options] < options.slots:
            following = queue.popleft()
            if following.open:
                self._start(following, options)

    def _say(self, connection: TruthConnection, data: bytes) -> None:
        self._after_send(connection, alive=connection.say(data))

    def _write(self, connection: TruthConnection) -> None:
        self._selector.modify(connection.peer, selectors.EVENT_READ, connection)
        self._after_send(connection, alive=connection.flush())

    def _after_send(self, connection: TruthConnection, *, alive: bool) -> None:
        """After a send: close a lost connection, or wait until a slow client reads."""
        if not alive:
            self._close(connection)
        elif connection.going:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(connection.peer, both, connection)

    def _close(self, connection: TruthConnection) -> None:
        if not connection.open:
            return
        connection.open = False
        self._selector.unregister(connection.peer)
        connection.peer.close()
        if connection.answer is not None:
            connection.answer.cut_off = not connection.answer.finished
            connection.answer.cut_off_ns = monotonic_ns()
            if connection.script is None and connection.options is not None:
                self._queues[connection.options].remove(connection)
            self._free(connection)


def listen(uds: Path | None = None) -> socket.socket:
    """Listen on a socket file, else on a free loopback port."""
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(uds))
        listener.listen(BACKLOG)
    return listener


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m inferwatch.loadgen.truth.server")
    parser.add_argument("--uds", type=Path, help="listen on this socket file")
    with listen(parser.parse_args().uds) as listener:
        sys.stdout.write(json.dumps(listener.getsockname()) + "\n")
        sys.stdout.flush()
        TruthServer(listener).serve()


if __name__ == "__main__":
    main()
