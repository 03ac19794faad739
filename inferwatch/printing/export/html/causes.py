"""Why requests were slow and where the scheduler stood still, for the page."""

from collections.abc import Iterator

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, counted, format_duration, format_share
from inferwatch.metrics.causes.cause import SPOKEN, SlowRequests
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import Stall
from inferwatch.printing.html.svg_charts import clock
from inferwatch.printing.html.table import table
from inferwatch.printing.summary.causes import slowest_rows
from inferwatch.visible import as_html

MOST_PARTS = 3


def cause_tables(shown: Snapshot) -> Iterator[str]:
    """The slowest by cause, the slowest one by one, and stalls; over the session."""
    if shown.slowest is not None and shown.slowest.groups:
        yield from _slowest(shown.slowest)
    rows = slowest_rows(shown)
    if rows:
        names = ("TTFT", "where it went", "longest gap", "because of")
        yield from table("Slowest requests", names, map(_request, rows))
    if shown.stalls:
        yield from table("Stalls", ("at", "took", "what"), map(_stall, shown.stalls))


def _slowest(slowest: SlowRequests) -> Iterator[str]:
    yield from table(
        "Why requests were slow",
        ("of their TTFT", "requests it took most of"),
        (
            (SPOKEN[each.cause], format_share(each.share), f"{each.requests:,}")
            for each in slowest.groups
        ),
    )
    which = "from p99 on" if slowest.is_p99 else "the slowest tenth"
    said = f"{counted(slowest.n, 'request')} of {slowest.of:,}: {which}"
    yield f"<p>{as_html(said)}; shares are of their time to the first token</p>"


def _request(row: RequestRow) -> Iterator[str]:
    yield row.name
    yield format_duration(row.ttft_s)
    parts = sorted(row.ttft_parts, key=lambda part: -part[1])[:MOST_PARTS]
    said = (f"{format_duration(part_s).strip()} {cause}" for cause, part_s in parts)
    yield ", ".join(said) or UNKNOWN
    yield format_duration(row.itl_max_s)
    yield "" if row.itl_cause is None else SPOKEN[row.itl_cause]


def _stall(stall: Stall) -> Iterator[str]:
    yield stall.kind
    yield clock(stall.start_ns / NS_PER_S)
    yield format_duration((stall.end_ns - stall.start_ns) / NS_PER_S)
    yield stall.evidence
