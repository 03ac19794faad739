"""Reads a large trace of torch's profiler: how fast, and in how much memory.

    python benchmarks/profiles.py [--megabytes 400]

The trace is the three steps of a real one that the tests have, repeated one after
another. Beside it stands ``json.loads`` of the whole file, each in a process of its own
on the same machine, one after the other.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLE = Path("tests/inferwatch/profiles/cpu_vllm_0.32.json.gz")
OURS = """
from inferwatch.profiles.reading import report_of
from inferwatch.profiles.report import ReportJob
report = report_of(ReportJob(files=[path]))
said = f"{report.ranks[0].events:,} events, {len(report.ranks[0].steps):,} steps"
"""
WHOLE = """
import json
events = json.loads(open(path, "rb").read())["traceEvents"]
said = f"{len(events):,} events"
"""
MEASURED = """
import resource, sys, time
path = sys.argv[1]
began = time.perf_counter()
{body}
took = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(took, peak, said, sep="|")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        _write(path, megabytes * 1_000_000)
        size = path.stat().st_size / 1e6
        print(f"a trace of {size:,.0f} MB")
        for name, body in (("inferwatch", OURS), ("json.loads", WHOLE)):
            took_s, peak_mb, said = _measured(body, path)
            print(
                f"{name:<12} {size / took_s:7.1f} MB/s  {took_s:6.1f} s  "
                f"{peak_mb:7,.0f} MB resident  {said}"
            )


def _measured(body: str, path: Path) -> tuple[float, float, str]:
    code = MEASURED.format(body=body)
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    took_s, peak_mb, said = done.stdout.strip().split("|")
    return float(took_s), float(peak_mb), said


def _write(path: Path, size: int) -> None:
    """Write the sample's events again and again, each time later."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    events = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    begins = [each["ts"] for each in events]
    span = max(begins) - min(begins) + 50_000
    with path.open("w") as out:
        head = json.dumps({k: v for k, v in trace.items() if k != "traceEvents"})
        out.write(f'{head[:-1]}, "traceEvents": [')
        times = 0
        while out.tell() < size:
            later = [{**e, "ts": e["ts"] + times * span} for e in events]
            text = json.dumps(later, indent=1)[1:-1]
            out.write(f"{',' if times else ''}{text}")
            times += 1
        out.write("]}")


if __name__ == "__main__":
    main()
