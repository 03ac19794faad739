"""The columns of the request table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from operator import attrgetter

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    BRIEF_FLAGS,
    MILLISECONDS,
    UNKNOWN,
    format_clock,
    format_count,
    format_in,
)
from inferwatch.metrics.causes.cause import (
    ITL_CAUSES,
    PREFILL_CAUSES,
    QUEUE_CAUSES,
    TTFT_CAUSES,
    Cause,
)
from inferwatch.metrics.number import Number, label_of, number_of
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.request_groups import model_of
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.requests.slo import UNANSWERED
from inferwatch.ui.kit.renderables.bars import waterfall
from inferwatch.ui.kit.renderables.text import Line, TextRun, end_of, without_prefix
from inferwatch.ui.kit.row_filter import NO_WORD, FieldKind, FilterField
from inferwatch.ui.kit.table import UNBOUNDED, TableColumn
from inferwatch.ui.request.phases import (
    BEFORE_FIRST_TOKEN,
    PHASE_GLYPHS,
    STATES,
    length_s,
    phases,
)

KEPT_LONGEST = (
    *("ttft", "slo", "queue", "cause", "e2el", "output", "prompt", "tpot", "itl_max"),
    *("prefill", "itl_cause", "reason", "preemptions", "cached", "clock", "itl"),
    *("class", "model", "priority", "header", "max", "thinking", "temperature"),
    "phases",
)
"""Optional columns in the order in which they keep their room."""

FLAG_WIDTH = len(" max_num_batched_tokens")
"""Cells of the longest flag that is a cause; the next column begins with a blank."""
MISSED = "▲"
"""Marks a missed objective."""


def rank_of(key: str) -> int:
    """Return an optional column's rank: higher ones are left out first."""
    return KEPT_LONGEST.index(key) + 1


@dataclass
class RequestView:
    """What columns know besides a row: the moment shown and the scale of bars."""

    now_ns: int = 0
    longest_s: float = 0.0
    """The longest request in sight."""
    wall_text: Callable[[int], str] = format_clock
    """A moment as a clock has it."""
    models: Mapping[str, str] = dataclass_field(default_factory=dict)
    contexts: Mapping[str, int] = dataclass_field(default_factory=dict)
    """The model of each source of requests."""


def request_columns(view: RequestView) -> Iterable[TableColumn[RequestRow]]:
    """Return the columns of the request table, from left to right.

    Those with a rank are optional; by default the ones that fit are shown.
    """

    def bar(row: RequestRow, width: int) -> Line:
        spent = phases(row, view.now_ns)
        share = length_s(spent) / view.longest_s if view.longest_s else 0
        cells_ = max(round((width - 1) * share), 1)
        return TextRun(" "), *waterfall(spent, cells_, PHASE_GLYPHS)

    return (
        TableColumn(
            "state",
            " state",
            13,
            _state,
            value=lambda row: row.state.value,
            filter=FilterField(
                "state",
                lambda row: row.state.value,
                choices=[state.value for state in RequestState],
            ),
        ),
        TableColumn(
            "arrived",
            "id, by arrival",
            14,
            _id,
            value=lambda row: row.arrived_ns,
            gap=1,
            least=8,
            grows=3,
            most=30,
            filter=FilterField("id", _ids),
        ),
        TableColumn(
            "clock",
            label_of(RequestRow.arrived_ns),
            10,
            lambda row, _: TextRun(view.wall_text(row.arrived_ns).strip(), "muted"),
            value=lambda row: row.arrived_ns,
            right=True,
            from_width=UNBOUNDED,
            rank=rank_of("clock"),
            tells=number_of(RequestRow.arrived_ns).help,
        ),
        _count("prompt", RequestRow.prompt_tokens, from_width=72),
        _count("cached", RequestRow.cached_tokens, from_width=176),
        _count("output", RequestRow.output_tokens, also=("tokens", "output")),
        _growing("queue", RequestRow.queue_s, view, _queued_ns),
        _growing("prefill", RequestRow.prefill_s, view, _prefilled_ns, from_width=168),
        _growing("ttft", RequestRow.ttft_s, view, _first_token_awaited_ns),
        _duration("tpot", RequestRow.tpot_s, from_width=90),
        _duration("itl", RequestRow.itl_last_s, from_width=156, also=("itl",)),
        _duration("itl_max", RequestRow.itl_max_s, from_width=120),
        _growing("e2el", RequestRow.e2el_s, view, _lives_ns),
        TableColumn(
            "preemptions",
            label_of(RequestRow.preemptions),
            5,
            _preemptions,
            value=lambda row: row.preemptions,
            right=True,
            from_width=126,
            filter=_field(
                RequestRow.preemptions, FieldKind.COUNT, also=("preemptions",)
            ),
            rank=rank_of("preemptions"),
            tells=number_of(RequestRow.preemptions).help,
        ),
        _text("reason", RequestRow.reason, 10, from_width=136),
        TableColumn(
            "slo",
            f"  {label_of(RequestRow.missed)}",
            14,
            _missed,
            value=missed_words,
            ascending=True,
            from_width=UNBOUNDED,
            filter=FilterField("slo", missed_words),
            rank=rank_of("slo"),
            tells=number_of(RequestRow.missed).help,
        ),
        _count(
            "max", RequestRow.max_tokens, from_width=UNBOUNDED, also=("max_tokens",)
        ),
        _count("thinking", RequestRow.thinking_tokens, from_width=UNBOUNDED),
        TableColumn(
            "temperature",
            label_of(RequestRow.temperature),
            6,
            _temperature,
            value=lambda row: row.temperature,
            right=True,
            from_width=UNBOUNDED,
            filter=_field(
                RequestRow.temperature, FieldKind.NUMBER, also=("temperature",)
            ),
            rank=rank_of("temperature"),
            tells=number_of(RequestRow.temperature).help,
        ),
        _cause(RequestRow.cause, FLAG_WIDTH, TTFT_CAUSES, from_width=110),
        _cause(
            RequestRow.itl_cause,
            14,
            ITL_CAUSES,
            from_width=192,
            also=("late",),
        ),
        _model(view),
        TableColumn(
            "priority",
            label_of(RequestRow.priority),
            9,
            lambda row, _: TextRun(
                UNKNOWN if row.priority is None else str(row.priority)
            ),
            value=lambda row: row.priority,
            right=True,
            from_width=UNBOUNDED,
            filter=_field(RequestRow.priority, FieldKind.COUNT),
            rank=rank_of("priority"),
            tells=number_of(RequestRow.priority).help,
        ),
        _text("class", RequestRow.class_name, 12, from_width=UNBOUNDED),
        _text("header", RequestRow.header, 16, from_width=UNBOUNDED),
        TableColumn(
            "phases",
            " phases",
            16,
            bar,
            least=8,
            rank=rank_of("phases"),
            tells="Where its time went: API, queue, prefill and decode as a bar.",
        ),
    )


def _text(
    key: str, field: object, width: int, *, from_width: int
) -> TableColumn[RequestRow]:
    """Return a column of a request's text, such as its header; cut if too long."""
    number = number_of(field)
    value = attrgetter(number.name)

    def write(row: RequestRow, _: int) -> TextRun:
        return TextRun(f"  {value(row) or ''}", "muted")

    return TableColumn(
        key,
        f"  {number.label}",
        width,
        write,
        value=value,
        from_width=from_width,
        filter=FilterField(number.label, value),
        rank=rank_of(key),
        tells=number.help,
    )


def _cause(
    field: object,
    width: int,
    causes: Iterable[Cause],
    *,
    from_width: int,
    also: Sequence[str] = (),
) -> TableColumn[RequestRow]:
    number = number_of(field)
    value = attrgetter(number.name)

    def write(row: RequestRow, width: int) -> TextRun:
        return cause_run(value(row), width)

    def words(row: RequestRow) -> str | None:
        cause: Cause | None = value(row)
        return None if cause is None else words_of_cause(cause)

    return TableColumn(
        number.name,
        f" {number.label}",
        width,
        write,
        value=value,
        ascending=True,
        from_width=from_width,
        filter=FilterField(
            number.label.replace(" ", "_"),
            words,
            choices=[words_of_cause(each) for each in causes],
            also=also,
        ),
        rank=rank_of(number.name),
        tells=number.help,
    )


def words_of_cause(cause: Cause) -> str:
    """Return a cause as typed in filters, without spaces.

    >>> words_of_cause(Cause.QUEUE_KV)
    'queue_kv_blocks'
    """
    return NO_WORD.sub("_", cause.value.lower())


def cause_run(cause: Cause | None, width: int) -> TextRun:
    """Return a cause in its ink, as short as there is room."""
    text = f" {cause or UNKNOWN}"
    if len(text) > width:
        text = text.replace(" queue: ", " ", 1)
    if len(text) > width:
        text = f" {BRIEF_FLAGS.get(text[1:], text[1:])}"
    return TextRun(text, _cause_ink(cause))


def _cause_ink(cause: Cause | None) -> str:
    """Return the ink of the phase that a cause belongs to."""
    if cause is Cause.RECOMPUTE:
        return "warn"
    if cause in QUEUE_CAUSES:
        return "waiting"
    if cause in PREFILL_CAUSES:
        return "prefill"
    if cause is None or cause is Cause.UNKNOWN:
        return "faint"
    return "worst" if cause in ITL_CAUSES else "muted"


def _model(view: RequestView) -> TableColumn[RequestRow]:
    def value(row: RequestRow) -> str | None:
        return row.lora or model_of(row, view.models)

    def write(row: RequestRow, width: int) -> TextRun:
        name = value(row) or UNKNOWN
        return TextRun(f"  {end_of(name, width - 2)}", "" if row.lora else "muted")

    return TableColumn(
        "model",
        f"  {label_of(RequestRow.lora)}",
        16,
        write,
        value=value,
        ascending=True,
        from_width=UNBOUNDED,
        filter=FilterField("model", value, also=("lora",)),
        rank=rank_of("model"),
        tells=number_of(RequestRow.lora).help,
    )


def _duration(
    key: str, field: object, *, from_width: int = 0, also: Sequence[str] = ()
) -> TableColumn[RequestRow]:
    """Return a column of a duration of requests, in milliseconds."""
    number = number_of(field)
    value = attrgetter(number.name)

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = value(row)
        text = format_in(MILLISECONDS, seconds)
        return TextRun(text, "faint" if seconds is None else "")

    title = _in_ms(number)
    return TableColumn(
        key,
        title,
        max(len(title) + 1, 8),
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(field, FieldKind.DURATION, also=also),
        rank=rank_of(key),
        tells=number.help,
    )


def _growing(
    key: str,
    field: object,
    view: RequestView,
    since_ns: Callable[[RequestRow], int | None],
    *,
    from_width: int = 0,
) -> TableColumn[RequestRow]:
    """Return a column of a duration in ms; while it grows, the time so far with ``+``.

    ``since_ns`` returns when the duration began, None once it is over.
    """
    number = number_of(field)
    value = attrgetter(number.name)

    def at_least(row: RequestRow) -> float | None:
        seconds: float | None = value(row)
        began_ns = since_ns(row) if seconds is None else None
        if began_ns is None:
            return seconds
        return max(view.now_ns - began_ns, 0) / NS_PER_S

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = at_least(row)
        text = format_in(MILLISECONDS, seconds)
        if seconds is None:
            return TextRun(f"{text} ", "faint")
        if value(row) is None:
            return TextRun(f"{text}+", "muted")
        return TextRun(f"{text} ")

    title = f"{_in_ms(number)} "
    return TableColumn(
        key,
        title,
        max(len(title) + 1, 9),
        write,
        value=at_least,
        right=True,
        from_width=from_width,
        filter=replace(_field(field, FieldKind.DURATION), at_least=at_least),
        rank=rank_of(key),
        tells=number.help,
    )


def _queued_ns(row: RequestRow) -> int | None:
    return row.added_ns if row.state is RequestState.QUEUED else None


def _prefilled_ns(row: RequestRow) -> int | None:
    if row.state is not RequestState.PREFILL or row.queue_s is None:
        return None
    return (
        None if row.added_ns is None else row.added_ns + round(row.queue_s * NS_PER_S)
    )


def _first_token_awaited_ns(row: RequestRow) -> int | None:
    preempted = row.state is RequestState.PREEMPTED and row.output_tokens == 0
    return row.arrived_ns if preempted or row.state in BEFORE_FIRST_TOKEN else None


def _lives_ns(row: RequestRow) -> int | None:
    return row.arrived_ns if row.state.live else None


def _in_ms(number: Number) -> str:
    """Return a column's title with the unit, which all its cells share."""
    return f"{number.label} {MILLISECONDS.name}"


def _count(
    key: str, field: object, *, from_width: int = 0, also: Sequence[str] = ()
) -> TableColumn[RequestRow]:
    number = number_of(field)
    value = attrgetter(number.name)

    def write(row: RequestRow, _: int) -> TextRun:
        return TextRun(format_count(value(row)).strip())

    return TableColumn(
        key,
        number.label,
        max(len(number.label) + 1, 7),
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(field, FieldKind.COUNT, also=also),
        rank=rank_of(key),
        tells=number.help,
    )


def _field(
    field: object, kind: FieldKind, *, also: Sequence[str] = ()
) -> FilterField[RequestRow]:
    """Return a filter for a number of a request, named by its label: ``max_itl``."""
    number = number_of(field)
    label = number.label.lower().replace(" ", "_")
    return FilterField(label, attrgetter(number.name), kind, also=also)


def _state(row: RequestRow, _: int) -> TextRun:
    """Draw a request's state, marked if it missed an objective."""
    glyph, ink = STATES[row.state]
    if row.missed:
        return TextRun(f" {glyph} {row.state.value} {MISSED}", "warn")
    return TextRun(f" {glyph} {row.state.value}", ink)


def _missed(row: RequestRow, _: int) -> TextRun:
    if row.missed is None:
        return TextRun(f"  {UNKNOWN}", "faint")
    names = " ".join(m if m in UNANSWERED else LATENCIES[m].label for m in row.missed)
    return TextRun(f"  {MISSED}{names}", "warn") if names else TextRun("  ✓", "muted")


def missed_words(row: RequestRow) -> str | None:
    """Return what filters find: ``held``, or ``missed`` and the objectives missed."""
    if row.missed is None:
        return None
    names = [m if m in UNANSWERED else LATENCIES[m].label.lower() for m in row.missed]
    return " ".join(["missed", *names]) if names else "held"


def _id(row: RequestRow, width: int) -> TextRun:
    name = end_of(without_prefix(row.name), width - 1)
    return TextRun(name, "" if row.state.live else "muted")


def _ids(row: RequestRow) -> str:
    return f"{row.external_id or ''} {row.request_id}"


def _preemptions(row: RequestRow, _: int) -> TextRun:
    return TextRun(str(row.preemptions), "warn" if row.preemptions else "faint")


def _temperature(row: RequestRow, _: int) -> TextRun:
    is_known = row.temperature is not None
    return TextRun(
        f"{row.temperature:g}" if is_known else UNKNOWN, "" if is_known else "faint"
    )
