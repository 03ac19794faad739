"""Measures what reading a fleet of a thousand engines from Prometheus costs.

A server in a process of its own answers as Prometheus would, with all series of a vLLM
server for each of ENGINES; the reader and the Model are those of inferwatch.

    python benchmarks/prometheus_fleet.py [ENGINES]
"""

import asyncio
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.clock import SessionClock
from collectors.contract.readings import EngineSample
from collectors.http.server import Server
from collectors.servers.prometheus_server import PrometheusReader
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

SCRAPE = (
    Path(__file__).parent.parent
    / "tests/collectors/servers/families/scrapes/vllm_0.32.0.txt"
)
INTERVAL_S = 15
LIMIT_SHARE = 0.5
"""Largest share of one core for a thousand engines, scraped every 15 s."""


NOW_S = 1_800_000_000.0


def main() -> None:
    """Run the server, or measure."""
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
        return
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with subprocess.Popen(
        [sys.executable, __file__, "serve", str(engines)],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            asyncio.run(measure(url, engines))
        finally:
            server.terminate()


class FleetAnswers:
    """Prometheus's answers for a fleet whose engines are scraped one by one."""

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._kept: dict[str, bytes] = {}
        self._samples = [
            (sample.name, sample.labels, repr(sample.value))
            for family in text_string_to_metric_families(SCRAPE.read_text("utf-8"))
            for sample in family.samples
        ]
        self._samples += [("up", {}, "1"), ("scrape_duration_seconds", {}, "0.01")]

    def answer(self, query: str) -> bytes:
        """Return the answer to a query, cached as it never changes."""
        if query not in self._kept:
            if query == "time()":
                data: object = {"resultType": "scalar", "result": [NOW_S, str(NOW_S)]}
            else:
                data = {"resultType": "matrix", "result": list(self._series(query))}
            whole = {"status": "success", "data": data}
            self._kept[query] = json.dumps(whole, separators=(",", ":")).encode()
        return self._kept[query]

    def _series(self, query: str) -> Iterator[object]:
        _, names, rest = query.split('"', 2)
        pattern = re.compile(names)
        span_s = float(rest.rpartition("[")[2].removesuffix("ms]")) / 1000
        samples = [each for each in self._samples if pattern.fullmatch(each[0])]
        for number in range(self._engines):
            last_s = NOW_S - INTERVAL_S * number / self._engines
            stamps = [last_s - INTERVAL_S * back for back in range(100, -1, -1)]
            within = [each for each in stamps if NOW_S - each < span_s]
            target = {"instance": f"10.0.{number // 256}.{number % 256}:8000"}
            target |= {"job": "vllm", "namespace": "prod", "pod": f"vllm-{number:05}"}
            for name, labels, value in samples if within else ():
                metric = dict(sorted({"__name__": name, **labels, **target}.items()))
                points = [[round(stamp, 3), value] for stamp in within]
                yield {"metric": metric, "values": points}


def serve(engines: int) -> None:
    fleet = FleetAnswers(engines)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            answer = fleet.answer(parse_qs(body)["query"][0])
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


async def measure(url: str, engines: int) -> None:
    """Measure the first reading of the fleet.

    An earlier one fills the server's cache.
    """
    for counts in (False, True):
        clock, model = SessionClock(), Model()
        reader = PrometheusReader(clock, Server(url=url), 'job="vllm"')
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        readings = await reader.look()
        read_s = time.perf_counter() - began_s
        read_cpu_s = time.process_time() - began_cpu_s
        for reading in readings:
            model.fold(reading)
        cpu_s = time.process_time() - began_cpu_s
        model.snapshot(clock.now_ns(), SnapshotQuery(Window.MINUTE))
        shown_s = time.process_time() - began_cpu_s - cpu_s
        await reader.close()
        if counts:
            scrapes = sum(isinstance(each, EngineSample) for each in readings)
            api, peak = reader.api, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            share = cpu_s / scrapes * engines / INTERVAL_S
            print(f"{engines:,} engines, {scrapes:,} scrapes read in {read_s:.1f} s")
            print(f"  {api.queries} queries, {api.answered_bytes / 1e6:.0f} MB")
            print(f"  CPU: read {read_cpu_s:.2f} s, fold {cpu_s - read_cpu_s:.2f} s, ")
            print(f"  a snapshot {shown_s:.2f} s; memory {peak / 1024:.0f} MB")
            print(f"  {share:.0%} of a core, scraped every {INTERVAL_S} s")
            if share > LIMIT_SHARE:
                sys.exit(f"more than {LIMIT_SHARE:.0%} of a core")


if __name__ == "__main__":
    main()
