"""A completions server that knows the truth: fixed schedule, logged sends.

``python -m inferwatch.loadgen.truth_server [--uds PATH]`` prints its address as JSON.
The model's name says how to answer, as ``ttft=0.05,itl=0.02,variant=crlf``. Token k is
due at ``received + ttft + k * itl``. ``GET /log`` tells, per request, when it was
received and when each token was sent, on the monotonic clock all processes share.
"""

import argparse
import json
import socket
import socketserver
import sys
import time
from dataclasses import asdict, dataclass, field

KEEPALIVE = b": still here\n\n"
BREAKS = {"broken", "error_event", "named_error", "junk", "unfinished"}
"""Half of the tokens, then something goes wrong."""


@dataclass
class Answer:
    """One request, as it happened here."""

    request_id: str
    received_ns: int
    prompt: list[int]
    max_tokens: int
    body: dict[str, object]
    sent_ns: list[int] = field(default_factory=list)
    finished: bool = False
    cut_off: bool = False
    """The client went away before the end."""


LOG: list[Answer] = []


class Handler(socketserver.StreamRequestHandler):
    """HTTP/1.1 with keep-alive, one thread a connection."""

    def handle(self) -> None:
        """Answer until the client has enough or an answer ends in a hang-up."""
        if self.request.family != socket.AF_UNIX:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := self._head():
            method, path, headers = head
            body = self.rfile.read(int(headers.get("content-length", 0)))
            if method == "GET":
                self._get(path)
            elif not self._completion(headers, json.loads(body)):
                return

    def say(self, status: str, body: bytes, *headers: str) -> None:
        """A whole answer at once."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

    def _head(self) -> tuple[str, str, dict[str, str]] | None:
        try:
            request_line = self.rfile.readline()
        except ConnectionError:
            return None
        if not request_line:
            return None
        method, path, _ = request_line.decode().split(" ", 2)
        headers = {}
        while line := self.rfile.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return method, path, headers

    def _get(self, path: str) -> None:
        told = json.dumps([asdict(each) for each in LOG] if path == "/log" else {})
        self.say("200 OK", told.encode())

    def _completion(self, headers: dict[str, str], body: dict[str, object]) -> bool:
        """False closes the connection."""
        answer = Answer(
            request_id=headers["x-request-id"],
            received_ns=time.monotonic_ns(),
            prompt=body["prompt"],  # type: ignore[arg-type]
            max_tokens=body["max_tokens"],  # type: ignore[arg-type]
            body={key: value for key, value in body.items() if key != "prompt"},
        )
        LOG.append(answer)
        try:
            return Script(self, answer, str(body["model"])).play()
        except OSError:
            answer.cut_off = True
            return False


class Script:
    """Plays one variant of an answer."""

    def __init__(self, handler: Handler, answer: Answer, model: str) -> None:
        self._handler = handler
        self._answer = answer
        asked = dict(part.split("=") for part in model.split(",") if "=" in part)
        self._ttft_ns = int(float(asked.get("ttft", "0.01")) * 1e9)
        self._itl_ns = int(float(asked.get("itl", "0.002")) * 1e9)
        self._variant = asked.get("variant", "plain")
        self._end = b"\r\n\r\n" if self._variant == "crlf" else b"\n\n"
        self._bundle = 4 if self._variant == "bundle" else 1

    def play(self) -> bool:
        """Answer as asked; False closes the connection."""
        refusal = getattr(self, f"_say_{self._variant}", None)
        if refusal is not None:
            return bool(refusal())
        self._begin()
        if self._variant == "empty":
            return self._done()
        for first in range(0, self._answer.max_tokens, self._bundle):
            if first == self._answer.max_tokens // 2 and self._variant in BREAKS:
                return self._break()
            self._token(first)
        return self._finish()

    def _say_http_429(self) -> bool:
        self._handler.say("429 Too Many", b"slow down", "Retry-After: 1")
        return True

    def _say_http_404(self) -> bool:
        self._handler.say("404 Not Found", b"no such model")
        return True

    def _say_http_500(self) -> bool:
        self._handler.say("500 Oops", b"engine dead")
        return True

    def _say_redirect(self) -> bool:
        self._handler.say("302 Found", b"", "Location: /v1/completions")
        return True

    def _say_silent(self) -> bool:
        while self._handler.request.recv(1024):
            pass
        self._answer.cut_off = True
        return False

    def _say_hangup(self) -> bool:
        return False

    def _break(self) -> bool:
        if self._variant == "broken":
            return False
        if self._variant == "error_event":
            self._event({"error": {"message": "engine is gone", "code": 500}})
        if self._variant == "named_error":
            self._write(b"event: error\ndata: engine is gone\n\n")
        if self._variant == "junk":
            self._write(b"data: {this is no json\n\n")
        self._handler.wfile.write(b"0\r\n\r\n")
        return True

    def _begin(self) -> None:
        self._handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def _token(self, first: int) -> None:
        if self._variant == "keepalive":
            self._write(KEEPALIVE)
        due_ns = self._answer.received_ns + self._ttft_ns + first * self._itl_ns
        time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
        count = min(self._bundle, self._answer.max_tokens - first)
        last = first + count == self._answer.max_tokens
        bare = last and self._variant == "bare_last"
        self._answer.sent_ns.append(time.monotonic_ns())
        self._choice("" if bare else "\u00e9 " * count, "length" if last else None)

    def _choice(self, text: str, finish: str | None) -> None:
        self._event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})

    def _finish(self) -> bool:
        if self._variant == "extra_finish":
            self._choice("", "stop")
        if self._variant not in {"no_usage", "no_done_no_usage"}:
            usage = {
                "prompt_tokens": len(self._answer.prompt),
                "completion_tokens": self._answer.max_tokens,
            }
            self._event({"choices": [], "usage": usage})
        return self._done()

    def _done(self) -> bool:
        if not self._variant.startswith("no_done"):
            self._write(b"data: [DONE]" + self._end)
        self._handler.wfile.write(b"0\r\n\r\n")
        self._answer.finished = True
        return True

    def _event(self, event: dict[str, object]) -> None:
        space = b"" if self._variant == "no_space" else b" "
        self._write(b"data:" + space + json.dumps(event).encode() + self._end)

    def _write(self, data: bytes) -> None:
        step = 1 if self._variant == "bytewise" else len(data)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))


class TcpServer(socketserver.ThreadingTCPServer):
    """On loopback."""

    daemon_threads = True
    request_queue_size = 512


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """On a socket file."""

    daemon_threads = True
    request_queue_size = 512


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds")
    uds = parser.parse_args().uds
    server: TcpServer | UnixServer
    server = UnixServer(uds, Handler) if uds else TcpServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(json.dumps(server.socket.getsockname()) + "\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
