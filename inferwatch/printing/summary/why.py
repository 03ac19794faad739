"""Why requests were slow, as text in 80 columns and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    TimeUnit,
    counted,
    format_duration,
    format_in,
    format_share,
    shared_unit,
)
from inferwatch.metrics.causes.cause import ESTIMATES, Parts, SlowRequests
from inferwatch.metrics.load.book import error_text
from inferwatch.metrics.load.view import FailureCount
from inferwatch.metrics.requests.refusals import (
    RefusedGroup,
    of_requests,
    refused_count,
)
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.metrics.story.story import RequestStory, SpanKind, Spike, StorySpan
from inferwatch.printing.summary.refused import refused_rows, refused_words
from inferwatch.printing.summary.stacks import stacks_row
from inferwatch.printing.text import WIDTH, shortened
from inferwatch.visible import visible

BAR = 24
"""Columns of the waterfall."""
MOST_LINES = 40
"""Most lines of a waterfall; with more, similar chunks are merged."""
MOST_LATE = 12
MOST_COMPANIONS = 5
NOT_YET = "No request has had its first token by then."
NOT_PROBED = "Nobody told of single requests: it takes a probe in the server to do so."
WallText = Callable[[int], str]
"""Formats a moment of session time as local time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The slowest requests, or the one that was requested."""

    session_id: str
    now_ns: int
    slowest: SlowRequests | None = None
    stories: tuple[RequestStory, ...] = ()
    """The slowest first, or only the requested one."""
    asked: bool = False
    is_probed: bool = True
    """Whether the engine has a probe."""
    refused: tuple[RefusedGroup, ...] = ()
    """Requests that the API server refused."""
    stacks: StalledStacks | None = None
    """Of the latest stall; None without any."""
    failed: FailureCount | None = None
    """The most frequent failure of a load's requests, if none was answered."""


def why_json(why: Why) -> dict[str, Any]:
    """The result as JSON, named as the fields."""
    stories = [story_json(story) for story in why.stories]
    head: dict[str, Any] = {"session_id": why.session_id, "now_ns": why.now_ns}
    if why.asked:
        return head | {"request": stories[0]}
    slowest = msgspec.to_builtins(why.slowest)
    if why.slowest is not None:
        slowest["sentence"] = why.slowest.sentence
    refused = refused_rows(why.refused)
    stacks = stacks_row(why.stacks)
    rest = {"worst": stories, "refused": refused, "stacks": stacks}
    return head | {"slowest": slowest, **rest}


def story_json(story: RequestStory) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(story)
    row["ttft_parts_s"] = by_cause(row.pop("ttft_parts"))
    row["client_s"] = by_cause(row.pop("client"))
    row["row"]["ttft_parts_s"] = by_cause(row["row"].pop("ttft_parts"))
    samples = ("t_ns", "hbm_share", "sm_active", "sm_clock_mhz")
    row["gpu"] = [dict(zip(samples, each, strict=True)) for each in row["gpu"]]
    blocks = row["kv_blocks"]
    row["kv_blocks"] = [{"since_ns": t_ns, "blocks": count} for t_ns, count in blocks]
    return row


def by_cause(parts: Sequence[Sequence[Any]]) -> dict[str, float]:
    return {cause: part_s for cause, part_s in parts}  # noqa: C416 - lists, not pairs


def why_text(why: Why, wall: WallText) -> str:
    """The result as text; ``wall`` formats times."""
    if why.asked:
        return "\n".join(story_lines(why.stories[0], wall))
    lines = [f"{why.session_id}, as of {wall(why.now_ns)}"]
    slow = why.slowest
    if why.stacks is not None:
        at = f"The engine stalled at {wall(why.stacks.stalled_ns)}"
        lines += _paragraph(f"{at}: {visible(why.stacks.sentence)}.", "")
    if not why.stories:
        return "\n".join([*lines, *_nothing(why)])
    if slow is not None and slow.sentence:
        lines += ["", f"{slow.sentence}.", *_groups(slow)]
    lines += ["", f"the slowest {len(why.stories)} by TTFT:"]
    for story in why.stories:
        lines += ["", *_short_story(story, wall)]
    return "\n".join(lines)


def _nothing(why: Why) -> Iterator[str]:
    if groups := of_requests(why.refused):
        count = counted(refused_count(groups), "request")
        verb = "was" if count.startswith("1 ") else "were"
        words = refused_words(refused_rows(groups))
        yield from _paragraph(f"{count} {verb} refused: {words}.", "")
    elif why.failed is None:
        yield NOT_YET if why.is_probed else NOT_PROBED
    if why.failed is None:
        return
    text = error_text(why.failed.first) or "nothing was said"
    yield from _paragraph(
        "No request of our load was answered by then: "
        f"{why.failed.count:,} failed as {why.failed.kind}, the first of them: "
        f"{visible(text)}",
        "",
    )


def _groups(slow: SlowRequests) -> Iterator[str]:
    what = "from p99 on" if slow.is_p99 else "the slowest tenth"
    yield from _paragraph(
        f"The {counted(slow.n, 'slow request')} of {slow.of:,} ({what}, from "
        f"{format_duration(slow.from_s).strip()}), by what took their TTFT, and of how "
        "many of them it took most:",
        "",
    )
    yield "  share  cause                           most of    worst"
    for each in slow.groups:
        yield (
            f"   {format_share(each.share)}  {each.cause:<30}{each.requests:>9}"
            f"  {format_duration(each.worst_ttft_s)}"
        )


def _short_story(story: RequestStory, wall: WallText) -> Iterator[str]:
    row = story.row
    yield f"{format_duration(row.ttft_s)}  {shortened(row.name, WIDTH - 10)}"
    yield from _wrapped([wall(row.arrived_ns), *_sizes(row)], "         ")
    if story.ttft_parts:
        yield from _wrapped(list(_shares(story.ttft_parts)), "         ")


def _sizes(row: RequestRow) -> list[str]:
    sizes = [f"{counted(row.prompt_tokens, 'prompt token')}"]
    if row.cached_tokens:
        sizes.append(f"{row.cached_tokens:,} cached")
    sizes.append(f"{counted(row.output_tokens, 'output token')}")
    if row.thinking_tokens is not None:
        sizes.append(f"{row.thinking_tokens:,} of them thinking")
    if row.media_items:
        cached = f" ({row.media_cached:,} cached)" if row.media_cached else ""
        sizes.append(f"{counted(row.media_items, 'media item')}{cached}")
    if row.preemptions:
        sizes.append(counted(row.preemptions, "preemption"))
    return sizes


def _shares(parts: Parts) -> Iterator[str]:
    whole_s = sum(part_s for _, part_s in parts)
    for cause, part_s in sorted(parts, key=lambda each: -each[1]):
        about = "~" if cause in ESTIMATES else ""
        share = format_share(part_s / whole_s).strip() if whole_s else "–"
        yield f"{cause} {about}{format_duration(part_s).strip()} ({share})"


def _wrapped(pieces: Sequence[str], indent: str) -> Iterator[str]:
    line = indent
    for number, piece in enumerate(pieces):
        text = piece if number == len(pieces) - 1 else f"{piece}, "
        if len(line) > len(indent) and len(line + text.rstrip()) > WIDTH:
            yield line.rstrip()
            line = indent
        line += text
    yield line.rstrip()


def story_lines(story: RequestStory, wall: WallText) -> Iterator[str]:
    """One request: its phases as a waterfall, and late tokens with their causes."""
    row = story.row
    yield shortened(row.name, WIDTH)
    ended = f"{row.state} ({visible(row.reason)})" if row.reason else f"{row.state}"
    yield from _wrapped([ended, f"came {wall(row.arrived_ns)}", *_sizes(row)], "  ")
    if row.ttft_s is not None:
        yield ""
        yield f"TTFT {format_duration(row.ttft_s).strip()}, of which"
        yield from _wrapped(
            list(_shares(story.ttft_parts)) or ["nothing is known"], "  "
        )
    if story.client:
        yield "beyond that the client saw"
        parts = [f"{c} {format_duration(s).strip()}" for c, s in story.client]
        yield from _wrapped(parts, "  ")
    yield ""
    yield from waterfall_lines(story)
    yield from _tokens(story)
    yield from _memory(story)
    yield from _others(story)
    for each in story.missing:
        yield from _paragraph(f"not known: {visible(each)}", "")


def waterfall_lines(story: RequestStory) -> Iterator[str]:
    """One line per span: its start, name, duration and bar."""
    spans = story.spans
    if not spans:
        return
    start_ns, end_ns = spans[0].start_ns, spans[-1].end_ns
    lines = _grouped(spans) if len(spans) > MOST_LINES else [(each,) for each in spans]
    top = lines[:MOST_LINES]
    unit = shared_unit([(end_ns - start_ns) / NS_PER_S])
    yield f"      at  {'':24}{'took':>10}"
    for each in top:
        yield _waterfall_line(each, start_ns, end_ns, unit)
    if len(lines) > len(top):
        yield f"          and {counted(len(lines) - len(top), 'stretch', 'stretches')}"


def _waterfall_line(
    spans: Sequence[StorySpan], start_ns: int, end_ns: int, unit: TimeUnit
) -> str:
    first, last = spans[0], spans[-1]
    took_ns = sum(each.end_ns - each.start_ns for each in spans)
    tokens = sum(each.tokens or 0 for each in spans)
    name = _span_name(first)
    if len(spans) > 1:
        name += f" ×{len(spans)}"
    if tokens:
        name += f" {tokens:,} tok"
    at = format_in(unit, (first.start_ns - start_ns) / NS_PER_S)
    took = format_in(unit, took_ns / NS_PER_S)
    bar = _bar(first.start_ns - start_ns, last.end_ns - start_ns, end_ns - start_ns)
    return f"{at:>8}  {name:<27}{took:>7} {unit.name:<2} │{bar}│"


def _span_name(span: StorySpan) -> str:
    if span.kind is SpanKind.QUEUE and span.cause is not None:
        cause = str(span.cause)
        return cause if cause.startswith("queue") else f"queue: {cause}"
    return str(span.kind)


def _bar(start: int, end: int, whole: int) -> str:
    """The bar of a span; even the shortest has a mark."""
    first = min(start * BAR // max(whole, 1), BAR - 1)
    last = max(first + 1, -(-end * BAR // max(whole, 1)))
    return (" " * first + "█" * (last - first)).ljust(BAR)[:BAR]


def _grouped(spans: Sequence[StorySpan]) -> list[tuple[StorySpan, ...]]:
    """Group the spans to be shown on one line.

    Consecutive prefill chunks are one group, and the pauses between them another.
    """
    prefill = {SpanKind.CHUNK, SpanKind.LEFT_OUT}
    groups: list[tuple[StorySpan, ...]] = []
    for together, group in groupby(spans, key=lambda each: each.kind in prefill):
        here = list(group)
        if not together:
            groups += [(each,) for each in here]
            continue
        for kind in (SpanKind.CHUNK, SpanKind.LEFT_OUT):
            if of_kind := tuple(each for each in here if each.kind is kind):
                groups.append(of_kind)
    return groups


def _tokens(story: RequestStory) -> Iterator[str]:
    if story.gap_p50_ns is None or story.gap_p99_ns is None:
        return
    p50, p99 = _short(story.gap_p50_ns), _short(story.gap_p99_ns)
    gaps = counted(len(story.token_ns) - 1, "gap")
    yield ""
    yield f"ITL p50 {p50}, p99 {p99} of {gaps}; {_late(story.spikes)}"
    worst = sorted(story.spikes, key=lambda each: -each.gap_ns)[:MOST_LATE]
    start_ns = story.spans[0].start_ns if story.spans else story.row.arrived_ns
    for each in sorted(worst, key=lambda each: each.t_ns):
        at = f"{(each.t_ns - start_ns) / NS_PER_S:,.3f} s"
        head = f"{at:>12} {_short(each.gap_ns):>7} late: {each.cause}"
        yield head
        yield from _paragraph(shortened(each.evidence, 4 * WIDTH), " " * 13)


def _late(spikes: Sequence[Spike]) -> str:
    if not spikes:
        return "none came late"
    more = f", the worst {MOST_LATE}" if len(spikes) > MOST_LATE else ""
    return f"{counted(len(spikes), 'token')} came late{more}:"


def _short(ns: int) -> str:
    return format_duration(ns / NS_PER_S).strip()


def _memory(story: RequestStory) -> Iterator[str]:
    facts = []
    if story.steps_total:
        facts.append(f"in {counted(story.steps_total, 'step')}")
    if story.kv_peak_blocks is not None:
        facts.append(f"{counted(story.kv_peak_blocks, 'KV block')} at most")
    if story.drafted_tokens:
        share = format_share((story.accepted_tokens or 0) / story.drafted_tokens)
        facts.append(
            f"{counted(story.drafted_tokens, 'token')} speculated, {share.strip()} "
            "accepted"
        )
    if facts:
        yield ""
        yield "; ".join(facts)


def _others(story: RequestStory) -> Iterator[str]:
    if not story.companions:
        return
    yield f"prefilled in its steps: {counted(len(story.companions), 'other request')}"
    for each in story.companions[:MOST_COMPANIONS]:
        tokens = counted(each.prefill_tokens, "token")
        yield f"  {tokens:>14}  {shortened(each.name, WIDTH - 18)}"


def _paragraph(text: str, indent: str) -> Iterator[str]:
    """Break text into lines; a word longer than a line is cut."""
    room = WIDTH - len(indent)
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > room:
            yield indent + line
            line = ""
        line = f"{line} {word}" if line else shortened(word, room)
    yield indent + line
