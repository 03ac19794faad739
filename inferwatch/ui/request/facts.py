"""Facts about a request besides its times, and what is unknown."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    counted,
    format_count,
    format_duration,
    format_durations,
    format_share,
)
from inferwatch.metrics.causes.cause import ESTIMATES, Cause
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.story.story import RequestStory, SpanKind
from inferwatch.ui.kit.renderables.text import Line, TextRun, join, join_whole, labelled
from inferwatch.ui.request.moments import Stop, StoryMoments
from inferwatch.ui.request.styles import CAUSES, LANES, LATE
from inferwatch.visible import visible

HINT = ("← → go by phase and token", "s S by late token", "3 to the steps of that time")
BETWEEN = "   "


def fact_line(story: RequestStory, width: int) -> Line:
    """Return the most important facts on the request that fit."""
    return join_whole(_facts(story), width, BETWEEN)


def fact_lines(story: RequestStory, arrived: str, width: int) -> list[Line]:
    """Return all facts on the request, in as many rows as they need."""
    row = story.row
    rest = [
        labelled("arrived", arrived),
        *_quantity("temperature", row.temperature, "g"),
        *_quantity("priority", row.priority, "d"),
        *([labelled("LoRA", row.lora)] if row.lora else []),
        *([labelled("header", row.header)] if row.header else []),
        *([labelled("class", row.class_name)] if row.class_name else []),
        *([labelled("ended by", row.reason)] if row.reason else []),
        *_client(story),
    ]
    lines = _folded([*_facts(story), *rest], width - 2)
    for label, name in (("client's id", row.external_id), ("engine's", row.request_id)):
        if name:
            lines += _long(label, name, width)
    return lines


def _facts(story: RequestStory) -> list[Line]:
    row = story.row
    texts = format_durations((row.queue_s, row.prefill_s, row.tpot_s, row.itl_max_s))
    queue, prefill, tpot, longest = (text.strip() for text in texts)
    cached = story.cached_tokens
    cached = row.cached_tokens if cached is None else cached
    facts = [
        labelled("prompt", _count(row.prompt_tokens)),
        labelled("cached", _cached(cached, row.prompt_tokens)),
        labelled("out", _out(row.output_tokens, row.max_tokens)),
        labelled("TPOT", tpot),
        labelled("ITL max", longest),
        labelled("E2EL", format_duration(row.e2el_s).strip()),
        *([labelled("preempted", f"{row.preemptions}×")] if row.preemptions else []),
        *_media(row),
        *_thinking(story),
        *_speculated(story),
        labelled("queue", queue),
        labelled("prefill", prefill),
    ]
    if story.kv_peak_blocks is not None:
        facts.append(labelled("KV peak", counted(story.kv_peak_blocks, "block")))
    return facts


def _cached(cached: int | None, prompt: int | None) -> str:
    if not cached or not prompt:
        return _count(cached)
    return f"{_count(cached)} ({format_share(cached / prompt).strip()})"


def _out(output: int | None, most: int | None) -> str:
    return f"{_count(output)} of {_count(most)}" if most else _count(output)


def _media(row: RequestRow) -> list[Line]:
    """Return how many media its prompt has, and how many were cached; empty without."""
    if not row.media_items:
        return []
    cached = f" ({row.media_cached:,} cached)" if row.media_cached else ""
    return [labelled("media", f"{_count(row.media_items)}{cached}")]


def _thinking(story: RequestStory) -> list[Line]:
    """Return the tokens of thinking and when the answer began; empty without."""
    tokens, answer_s = story.row.thinking_tokens, story.answer_after_s
    if tokens is None:
        return []
    began = ""
    if answer_s is not None:
        began = f", answer after {format_duration(answer_s).strip()}"
    return [labelled("thinking", f"{_count(tokens)}{began}")]


def _speculated(story: RequestStory) -> list[Line]:
    """Return how many drafted tokens were accepted; empty without speculation."""
    if not story.drafted_tokens:
        return []
    share = format_share((story.accepted_tokens or 0) / story.drafted_tokens).strip()
    counts = f"{_count(story.accepted_tokens)} of {_count(story.drafted_tokens)}"
    return [labelled("drafts accepted", f"{counts} ({share})")]


def _client(story: RequestStory) -> list[Line]:
    """Return what our client measured beyond the server's TTFT; empty without one."""
    parts = [
        f"{CAUSES[cause].name} {format_duration(seconds).strip()}"
        for cause, seconds in story.client
    ]
    return [labelled("its client adds", " + ".join(parts))] if parts else []


def _quantity(label: str, value: float | None, how: str) -> list[Line]:
    return [] if value is None else [labelled(label, format(value, how))]


def _count(count: int | None) -> str:
    return format_count(count).strip()


def _folded(facts: Iterable[Line], width: int) -> list[Line]:
    """Put facts into as few rows as hold them uncut."""
    lines: list[list[Line]] = [[]]
    for fact in facts:
        longer = [*lines[-1], fact]
        if lines[-1] and len(join_whole(longer, width, BETWEEN)) < len(
            join(longer, BETWEEN)
        ):
            lines.append([fact])
        else:
            lines[-1] = longer
    return [(TextRun(" "), *join(each, BETWEEN)) for each in lines]


def _long(label: str, text: str, width: int) -> list[Line]:
    """Return a label and a long name, which is wrapped instead of cut."""
    head = f" {label} "
    text, room = visible(text), max(width - len(head) - 1, 8)
    pieces = wrap(text, room, break_on_hyphens=False) or [""]
    return [
        (TextRun(head if not place else " " * len(head), "muted"), TextRun(piece))
        for place, piece in enumerate(pieces)
    ]


def missing_lines(story: RequestStory, width: int, rows: int) -> list[Line]:
    """Return what is unknown of the request and why, and how much has no room."""
    if rows < 1:
        return []
    texts: list[list[str]] = [
        wrap(visible(each), max(width - 4, 20)) for each in story.missing
    ]
    whole = [line for lines in texts for line in lines]
    if len(whole) <= rows:
        return [line for lines in texts for line in _marked(lines)]
    result: list[Line] = []
    left = len(texts)
    for lines in texts:
        if len(result) + len(lines) > rows - 1:
            break
        result += _marked(lines)
        left -= 1
    more = f"and {left:,} more" if result else counted(left, "thing") + " not known"
    return [*result, (TextRun(" ? ", "faint"), TextRun(more, "muted"))]


def _marked(lines: Sequence[str]) -> list[Line]:
    first, *rest = lines or [""]
    return [
        (TextRun(" ? ", "faint"), TextRun(first, "muted")),
        *((TextRun(f"   {each}", "muted"),) for each in rest),
    ]


def readout(moments: StoryMoments, stop: Stop | None, width: int) -> list[Line]:
    """Return what is at the time cursor and why; without a cursor, keys to press."""
    if stop is None:
        hint = HINT if moments.spikes else (HINT[0], HINT[-1])
        return [(TextRun(f" {', '.join(hint)}", "faint"),)]
    since_s = (stop.t_ns - moments.arrived_ns) / NS_PER_S
    sign = "−" if since_s < 0 else "+"
    when = TextRun(f" ▲ {sign}{format_duration(abs(since_s)).strip()} ", "accent")
    if stop.gap is not None:
        facts, why = _of_gap(moments, stop.gap)
    else:
        facts, why = _of_phase(moments, stop)
    facts += _of_step(moments, stop)
    lines = [(when, TextRun(" "), *join_whole(facts, width - len(when.text) - 2))]
    wrapped = wrap(visible(why), max(width - 4, 20))
    return lines + [(TextRun(f"   {line}", "muted"),) for line in wrapped]


def _of_gap(moments: StoryMoments, gap: int) -> tuple[list[Line], str]:
    gap_ns = int(moments.gaps[gap])
    spike = moments.spikes.get(gap)
    merged = spike is not None and spike.cause is Cause.MERGED
    if spike is not None and merged:
        gap_ns = spike.gap_ns
    facts: list[Line] = [
        (
            TextRun(f"token {gap + 2:,} ", "strong"),
            TextRun("at the client after " if merged else "after ", "muted"),
            TextRun(format_duration(gap_ns / NS_PER_S).strip(), "strong"),
        )
    ]
    if spike is None:
        facts.append((TextRun("in time", "muted"),))
        return facts, ""
    look = LATE[spike.cause]
    times = gap_ns / moments.median_ns if moments.median_ns else None
    if times is not None:
        facts.append((TextRun(f"{times:.0f}× the median", "muted"),))
    facts.append((TextRun(f"{look.glyph} {look.name}", f"{look.ink} bold"),))
    return facts, spike.evidence


def _of_phase(moments: StoryMoments, stop: Stop) -> tuple[list[Line], str]:
    span = stop.span
    if span is None:
        return [], ""
    took = format_duration((span.end_ns - span.start_ns) / NS_PER_S).strip()
    look, name = LANES[span.kind], LANES[span.kind].name
    if span.kind is SpanKind.CHUNK:
        chunks = [each for each in moments.story.spans if each.kind is SpanKind.CHUNK]
        place = next(i for i, each in enumerate(chunks, 1) if each is span)
        name = f"prefill, chunk {place:,} of {len(chunks):,}"
    facts: list[Line] = [
        (TextRun(f"{name} ", f"{look.ink} bold"), TextRun(took, "strong"))
    ]
    if span.tokens is not None:
        facts.append((TextRun(counted(span.tokens, "token")),))
    if span.cause is not None and CAUSES[span.cause].name != name:
        style = CAUSES[span.cause]
        about = " (estimated)" if span.cause in ESTIMATES else ""
        facts.append((TextRun(f"{style.glyph} {style.name}{about}", style.ink),))
    return facts, ""


def _of_step(moments: StoryMoments, stop: Stop) -> list[Line]:
    """Return facts on the step at the cursor: duration, batch, tokens, queue."""
    step = moments.step_at(stop.t_ns)
    if step is None:
        return []
    return [
        (TextRun("step ", "muted"), TextRun(f"#{step.index:,}")),
        (TextRun("took ", "muted"), TextRun(_ms(step.duration_ns))),
        (TextRun("batch ", "muted"), TextRun(f"{step.requests:,}")),
        (TextRun("tokens ", "muted"), TextRun(f"{step.tokens:,}")),
        (TextRun("prefill ", "muted"), TextRun(f"{step.prefill_tokens:,}")),
        (TextRun("waiting ", "muted"), TextRun(f"{step.waiting:,}")),
    ]


def _ms(duration_ns: int) -> str:
    return format_duration(duration_ns / NS_PER_S).strip()
