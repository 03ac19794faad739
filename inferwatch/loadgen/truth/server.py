"""A completions server that knows the truth: fixed schedule, logged sends.

``python -m inferwatch.loadgen.truth.server [--uds PATH]`` prints its address as JSON.
The model's name says how to answer, see :mod:`inferwatch.loadgen.truth.script`.
``GET /log`` tells, per request, when it was received and when each token was sent, on
the monotonic clock that all processes share.

One thread and no timers of an event loop: those are a millisecond coarse. It sleeps in
``select`` on the selector's own descriptor, which wakes to some 50 microseconds.
"""

import argparse
import heapq
import json
import select
import selectors
import socket
import sys
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

from collectors.clock import NS_PER_S, monotonic_ns
from inferwatch.loadgen.exchange.receive_stamps import ReceiveStamps, ask_for_stamps
from inferwatch.loadgen.truth.connection import Connection
from inferwatch.loadgen.truth.script import (
    DEFAULT_MODEL,
    NEVER_NS,
    Answer,
    Manner,
    Script,
    manner_of,
    whole,
)

BACKLOG = 1024


class TruthServer:
    """Answers on one listening socket until it is told no more."""

    def __init__(self, listener: socket.socket) -> None:
        self.log: list[Answer] = []
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._due: list[tuple[int, int, Connection]] = []
        self._order = 0
        self._receive_stamps = ReceiveStamps()
        ask_for_stamps(listener)  # its connections inherit that
        self._busy: Counter[Manner] = Counter()
        self._queues: dict[Manner, deque[Connection]] = defaultdict(deque)

    def serve(self) -> None:
        """Until the process ends."""
        while True:
            self._wait()
            for key, events in self._selector.select(0):
                self._ready(key, events)
            self._send_due()

    def _wait(self) -> None:
        """Until something comes or is due, to the microsecond."""
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
        self._selector.register(peer, selectors.EVENT_READ, Connection(peer))

    def _read(self, connection: Connection) -> None:
        if not connection.read(self._receive_stamps):
            self._close(connection)
        elif connection.answer is None:
            self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Begin with the next request, should it have come."""
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
        """By the names that vLLM gives them."""
        running = sum(self._busy.values())
        waiting = sum(len(queue) for queue in self._queues.values())
        name = "vllm:num_requests"
        return f"{name}_running {running}.0\n{name}_waiting {waiting}.0\n"

    def _begin(
        self,
        connection: Connection,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
    ) -> None:
        chat = path.endswith("/chat/completions")
        asked = body.pop("messages" if chat else "prompt")
        connection.answer = Answer(
            request_id=headers.get("x-request-id", ""),
            arrived_ns=connection.arrived_ns,
            received_ns=monotonic_ns(),
            prompt=asked,
            max_tokens=body.get("max_tokens") or body["max_completion_tokens"],
            body=body,
            headers=headers,
            chat=chat,
        )
        self.log.append(connection.answer)
        connection.manner = manner = manner_of(str(body["model"]))
        if manner.slots and self._busy[manner] >= manner.slots:
            self._queues[manner].append(connection)
        else:
            self._start(connection, manner)

    def _start(self, connection: Connection, manner: Manner) -> None:
        answer = connection.answer
        if answer is None:
            return
        self._busy[manner] += 1
        answer.started_ns = monotonic_ns()
        connection.script = Script(answer, manner)
        connection.beats = connection.script.beats()
        self._schedule(connection)

    def _schedule(self, connection: Connection) -> None:
        connection.beat = next(connection.beats, None)
        if connection.beat is None:
            self._end(connection)
            return
        self._order += 1
        due_ns = connection.beat.due_ns or monotonic_ns()
        heapq.heappush(self._due, (due_ns, self._order, connection))

    def _send_due(self) -> None:
        """What is due by now, each connection once: a flood starves nobody."""
        now_ns = monotonic_ns()
        ready = []
        while self._due and self._due[0][0] <= now_ns:
            ready.append(heapq.heappop(self._due)[2])
        for connection in ready:
            beat, answer = connection.beat, connection.answer
            if not connection.open or beat is None or answer is None:
                continue
            answer.sent_ns += [monotonic_ns()] * beat.tokens
            self._say(connection, beat.data)
            if connection.open:
                self._schedule(connection)

    def _end(self, connection: Connection) -> None:
        """The answer was played to its end."""
        keep = connection.script is not None and connection.script.keep
        self._free(connection)
        connection.answer = connection.script = None
        if keep:
            self._next(connection)
        else:
            self._close(connection)

    def _free(self, connection: Connection) -> None:
        """Give the slot to who waits longest."""
        manner, connection.manner = connection.manner, None
        if manner is None or connection.script is None:
            return
        self._busy[manner] -= 1
        queue = self._queues[manner]
        while queue and self._busy[manner] < manner.slots:
            following = queue.popleft()
            if following.open:
                self._start(following, manner)

    def _say(self, connection: Connection, data: bytes) -> None:
        self._go_on(connection, alive=connection.say(data))

    def _write(self, connection: Connection) -> None:
        self._selector.modify(connection.peer, selectors.EVENT_READ, connection)
        self._go_on(connection, alive=connection.flush())

    def _go_on(self, connection: Connection, *, alive: bool) -> None:
        """After a send: the client may be gone, or slow."""
        if not alive:
            self._close(connection)
        elif connection.going:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(connection.peer, both, connection)

    def _close(self, connection: Connection) -> None:
        if not connection.open:
            return
        connection.open = False
        self._selector.unregister(connection.peer)
        connection.peer.close()
        if connection.answer is not None:
            connection.answer.cut_off = not connection.answer.finished
            if connection.script is None and connection.manner is not None:
                self._queues[connection.manner].remove(connection)
            self._free(connection)


def listen(uds: Path | None = None) -> socket.socket:
    """On a socket file, else on a free port of loopback."""
    if uds is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(uds))
        listener.listen(BACKLOG)
    return listener


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m inferwatch.loadgen.truth.server")
    parser.add_argument("--uds", type=Path, help="listen on this socket file")
    with listen(parser.parse_args().uds) as listener:
        sys.stdout.write(json.dumps(listener.getsockname()) + "\n")
        sys.stdout.flush()
        TruthServer(listener).serve()


if __name__ == "__main__":
    main()
