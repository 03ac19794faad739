"""Prometheus's HTTP API over scrapes that a test has made up."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import parse_qs

from prometheus_client.parser import text_string_to_metric_families

Point = tuple[float, str]


class FakePrometheus:
    """Holds samples by series, and answers instant queries over ranges of them."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self.now_s = now_s
        self.url = ""
        self.queries: list[str] = []
        self.refusal: tuple[int, bytes] | None = None
        """What to answer whatever is asked: status and body."""
        self.warnings: list[str] = []
        self.before_query: Callable[[str], None] = lambda _: None
        """What happens in the meantime."""
        self.delay_s = 0.0
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        """Those of the last question."""
        self._met: list[asyncio.Task[None]] = []
        self._series: dict[str, tuple[dict[str, str], list[Point]]] = {}
        self._by_name: dict[str, list[str]] = defaultdict(list)

    def scraped(
        self, at_s: float, text: str, target: Mapping[str, str], took_s: float = 0.01
    ) -> None:
        """A scrape of a target that answered, at a time by its clock."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, **target}
                self.add(sample.name, labels, at_s, repr(sample.value))
        self.add("up", target, at_s, "1")
        self.add("scrape_duration_seconds", target, at_s, str(took_s))

    def failed(self, at_s: float, target: Mapping[str, str]) -> None:
        """A scrape that got no answer."""
        self.add("up", target, at_s, "0")
        self.add("scrape_duration_seconds", target, at_s, "10")

    def add(
        self, name: str, labels: Mapping[str, str], at_s: float, value: str
    ) -> None:
        """One sample."""
        whole = dict(sorted({"__name__": name, **labels}.items()))
        key = json.dumps(whole)
        if key not in self._series:
            self._series[key] = (whole, [])
            self._by_name[name].append(key)
        self._series[key][1].append((at_s, value))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakePrometheus"]:
        """Answer on loopback until the context ends."""
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        async with server:
            yield self
            for each in self._met:
                each.cancel()
            await asyncio.gather(*self._met, return_exceptions=True)

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._met.append(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                pairs = (line.partition(":") for line in lines[1:] if line)
                self.headers = {key.lower(): text.strip() for key, _, text in pairs}
                body = await reader.readexactly(int(self.headers["content-length"]))
                await asyncio.sleep(self.delay_s)
                self.paths.append(lines[0].split()[1])
                status, answer = self._answer(self.paths[-1], body)
                writer.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b"
                    % (status, len(answer), answer)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if not path.endswith("/api/v1/query"):
            return 404, b"404 page not found"
        self.before_query(body.decode())
        if self.refusal is not None:
            return self.refusal
        asked = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        query = asked["query"]
        self.queries.append(query)
        if query == "time()":
            data = {"resultType": "scalar", "result": [self.now_s, str(self.now_s)]}
        else:
            at_s = float(asked["time"])
            data = {"resultType": "matrix", "result": self._matrix(query, at_s)}
        answer = {"status": "success", "data": data}
        if self.warnings:
            answer["warnings"] = self.warnings
        return 200, json.dumps(answer).encode()

    def _matrix(self, query: str, at_s: float) -> list[object]:
        found = re.fullmatch(r'\{__name__=~"([^"]*)"(?:,(.*))?\}\[(\d+)ms\]', query)
        assert found, query
        names, others, span_ms = found.groups()
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', others or ""))
        since_s = at_s - int(span_ms) / 1000
        pattern = re.compile(names)
        result: list[object] = []
        for name, keys in self._by_name.items():
            if not pattern.fullmatch(name):
                continue
            for key in keys:
                labels, points = self._series[key]
                values = [each for each in points if since_s < each[0] <= at_s]
                if values and wanted.items() <= labels.items():
                    result.append({"metric": labels, "values": values})
        return result
