"""Where the time of all requests went, as JSON, as text and as tables of a page."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import to_builtins

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    TimeUnit,
    about,
    counted,
    format_durations,
    format_in,
    format_share,
    shared_unit,
)
from inferwatch.metrics.breakdown.view import (
    DIMENSIONS,
    ESTIMATED_PHASES,
    Breakdown,
    BreakdownBucket,
    BreakdownPart,
)
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.request_groups import GroupBy
from inferwatch.metrics.series.window import Quantiles
from inferwatch.printing.document import Block, Sentence, headed_table
from inferwatch.printing.summary.latencies import Summary, quantiles_row
from inferwatch.printing.text import (
    WIDTH,
    columns_of,
    grid,
    shortened,
    wrapped_sentence,
)

HEADING = "Where the time went"
MOST_PHASES = 3
"""Phases of a bucket that are told."""
NAME_WIDTH = 24
INDENT = "  "
PART_OF = "↳ "
"""Before a cause, which is a part of the phase above it: in text, and on pages."""
WallText = Callable[[int], str]
"""Formats a moment of session time as local time."""


def breakdown_row(breakdown: Breakdown | None) -> Summary | None:
    """The breakdown as JSON, named as its fields; None where no request ended."""
    if breakdown is None:
        return None
    return {
        "requests": breakdown.requests,
        "total_ns": breakdown.total_ns,
        "left_out": breakdown.left_out,
        "detokenised_s": _quantiles(breakdown.detokenised_s),
        "sentence": breakdown.sentence,
        "phases": [_part_row(each) for each in breakdown.phases],
        "causes": [_part_row(each) for each in breakdown.causes],
        "buckets": [_bucket_row(each) for each in breakdown.buckets],
    }


def _part_row(part: BreakdownPart) -> Summary:
    row: Summary = to_builtins(part)
    took = _quantiles(part.took_s)
    return row | {"took_s": took, "is_estimate": part.is_estimate}


def _bucket_row(bucket: BreakdownBucket) -> Summary:
    row: Summary = to_builtins(bucket)
    parts = {phase.value: took_ns for phase, took_ns in bucket.parts}
    return row | {"e2el_s": _quantiles(bucket.e2el_s), "parts": parts}


def _quantiles(quantiles: Quantiles | None) -> Summary | None:
    return None if quantiles is None else quantiles_row(quantiles)


# Text.


def breakdown_lines(breakdown: Breakdown, wall: WallText) -> Iterator[str]:
    """The sentence, phases with their causes, and the buckets of each dimension."""
    if breakdown.sentence:
        yield from wrapped_sentence(f"{breakdown.sentence}.", then="")
        yield ""
    yield from grid([_part_heads(breakdown), *_part_cells(breakdown)])
    for note in notes(breakdown):
        yield from wrapped_sentence(note, then="")
    for dimension in told_dimensions(breakdown):
        buckets = breakdown.of(dimension)
        yield ""
        unit = _unit(each.total_ns for each in buckets)
        heads = (f"by {dimension}", "n", f"E2EL {unit.name}", "share")
        rows = [_bucket_cells(each, breakdown, unit, wall) for each in buckets]
        lines = grid([heads, *rows])
        width = max(map(columns_of, lines))
        room = WIDTH - width - len(INDENT)
        phases = ("most of it", *(largest_phases(each, room) for each in buckets))
        for line, text in zip(lines, phases, strict=True):
            yield f"{line}{' ' * (width - columns_of(line))}{INDENT}{text}"


def told_dimensions(breakdown: Breakdown) -> list[GroupBy]:
    """The dimensions in which requests differ."""
    return [each for each in DIMENSIONS if len(breakdown.of(each)) > 1]


def notes(breakdown: Breakdown) -> Iterator[str]:
    """Sentences below the table of phases."""
    if any(each.is_estimate for each in (*breakdown.phases, *breakdown.causes)):
        yield (
            "~ is estimated by shares of steps that served several requests; before a "
            "percentile, it rests on too few of them."
        )
    handed = breakdown.detokenised_s
    if handed is not None:
        p50, p99 = (each.strip() for each in format_durations([handed.p50, handed.p99]))
        p99 = about(f" {p99}").strip() if "p99" in handed.weak else p99
        label = label_of(Breakdown.detokenised_s)
        yield f"{label}: p50 {p50}, p99 {p99}, after the E2EL."
    if breakdown.left_out:
        were = "was" if breakdown.left_out == 1 else "were"
        text = counted(breakdown.left_out, "request")
        yield f"{text} {were} left out: nobody saw when they came."


def _part_heads(breakdown: Breakdown) -> Sequence[str]:
    totals, took = _part_units(breakdown)
    of_one = [f"p50 {took.name}", "p99"]
    return ["phase", f"{'total'} {totals.name}", "share", *of_one]


def _part_units(breakdown: Breakdown) -> tuple[TimeUnit, TimeUnit]:
    parts = (*breakdown.phases, *breakdown.causes)
    took = [each.took_s for each in parts if each.took_s is not None]
    longest = [value for each in took for value in (each.p50, each.p99) if value]
    return _unit(each.total_ns for each in breakdown.phases), shared_unit(longest)


def _part_cells(breakdown: Breakdown) -> Iterator[Sequence[str]]:
    totals, took = _part_units(breakdown)
    for phase in breakdown.phases:
        yield _part(phase, totals, took)
        for cause in breakdown.causes_of(phase.phase):
            yield _part(cause, totals, took)


def _part(part: BreakdownPart, totals: TimeUnit, took: TimeUnit) -> Sequence[str]:
    name = part.phase.value if part.cause is None else f"{INDENT}{part.cause}"
    total = format_in(totals, part.total_ns / NS_PER_S).strip()
    return (
        name,
        about(f" {total}").strip() if part.is_estimate else total,
        part.share_text,
        *(_quantile(part.took_s, name, took) for name in ("p50", "p99")),
    )


def _quantile(quantiles: Quantiles | None, name: str, unit: TimeUnit) -> str:
    if quantiles is None:
        return UNKNOWN
    text = format_in(unit, getattr(quantiles, name)).strip()
    return about(f" {text}").strip() if name in quantiles.weak else text


def _bucket_cells(
    bucket: BreakdownBucket, breakdown: Breakdown, unit: TimeUnit, wall: WallText
) -> Sequence[str]:
    return (
        shortened(bucket_name(bucket, wall), NAME_WIDTH),
        f"{bucket.requests:,}",
        format_in(unit, bucket.total_ns / NS_PER_S).strip(),
        format_share(bucket.total_ns / max(breakdown.total_ns, 1)).strip(),
    )


def bucket_name(bucket: BreakdownBucket, wall: WallText) -> str:
    """The bucket's value; of a time, when it begins on the clock."""
    since_ns = bucket.since_ns
    return bucket.name if since_ns is None else f"from {wall(since_ns).strip()}"


def largest_phases(bucket: BreakdownBucket, room: int = WIDTH) -> str:
    """The phases that took most of a bucket's time: *decode ~40%, queue 22%*.

    At least one, and others as far as there is room.
    """
    said = ""
    for phase, took_ns in sorted(bucket.parts, key=lambda each: -each[1])[:MOST_PHASES]:
        share = format_share(took_ns / max(bucket.total_ns, 1))
        share = about(share) if phase in ESTIMATED_PHASES else share
        longer = f"{said}{', ' * bool(said)}{phase} {share.strip()}"
        if said and len(longer) > room:
            break
        said = longer
    return said


def _unit(totals_ns: Iterable[int]) -> TimeUnit:
    return shared_unit([each / NS_PER_S for each in totals_ns])


# Pages.


def breakdown_blocks(breakdown: Breakdown | None, wall: WallText) -> Iterator[Block]:
    """A heading, the table of phases, then one table for each dimension."""
    if breakdown is None:
        return
    heads = [*_part_heads(breakdown)]
    rows = (_marked(cells) for cells in _part_cells(breakdown))
    yield from headed_table(HEADING, heads[1:], rows, first=heads[0])
    if breakdown.sentence:
        yield Sentence(text=f"{breakdown.sentence}.")
    for note in notes(breakdown):
        yield Sentence(text=note)
    for dimension in told_dimensions(breakdown):
        buckets = breakdown.of(dimension)
        unit = _unit(each.total_ns for each in buckets)
        yield from headed_table(
            f"{HEADING}, by {dimension}",
            ("requests", f"E2EL {unit.name}", "share", "most of it"),
            (
                (*_bucket_cells(each, breakdown, unit, wall), largest_phases(each))
                for each in buckets
            ),
        )


def _marked(cells: Sequence[str]) -> Sequence[str]:
    """Mark a cause, as a page drops blanks before it."""
    name, *rest = cells
    return (name.replace(INDENT, PART_OF), *rest)
