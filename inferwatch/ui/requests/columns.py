"""The columns of the request table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    MILLISECONDS,
    UNKNOWN,
    format_clock,
    format_count,
    format_in,
)
from inferwatch.metrics.catalog import CATALOG, label_of
from inferwatch.metrics.causes.cause import (
    ITL_CAUSES,
    PREFILL_CAUSES,
    QUEUE_CAUSES,
    TTFT_CAUSES,
    Cause,
)
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.request_groups import model_of
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.requests.slo import FAILED
from inferwatch.ui.kit.renderables.bars import waterfall
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells_of
from inferwatch.ui.kit.row_filter import NO_WORD, FieldKind, FilterField
from inferwatch.ui.kit.table import UNBOUNDED, TableColumn
from inferwatch.ui.requests.phases import (
    BEFORE_FIRST_TOKEN,
    PHASE_GLYPHS,
    STATES,
    length_s,
    phases,
)
from inferwatch.visible import visible

KEPT_LONGEST = (
    *("ttft", "slo", "queue", "cause", "e2el", "output", "prompt", "tpot", "itl_max"),
    *("prefill", "itl_cause", "reason", "preemptions", "cached", "clock", "itl"),
    *("class", "model", "priority", "header", "max", "temperature", "phases"),
)
"""Columns that people chose, in the order in which room is kept for them."""

MISSED = "▲"
"""It missed an objective."""


def rank_of(key: str) -> int:
    """A later one gives way sooner."""
    return KEPT_LONGEST.index(key) + 1


@dataclass
class RequestView:
    """What columns know beside a row: the moment shown, and the scale of the bars."""

    now_ns: int = 0
    longest_s: float = 0.0
    """The longest request in sight."""
    wall_text: Callable[[int], str] = format_clock
    """A moment as a clock has it."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The model of each source of requests."""


def request_columns(view: RequestView) -> Iterable[TableColumn[RequestRow]]:
    """The columns of the request table, from left to right.

    Those with a rank can be chosen; the others, and those with room at a width, are
    shown until people choose.
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
            label_of("request.arrived_ns"),
            10,
            lambda row, _: TextRun(view.wall_text(row.arrived_ns).strip(), "muted"),
            value=lambda row: row.arrived_ns,
            right=True,
            from_width=UNBOUNDED,
            rank=rank_of("clock"),
            tells=tells("arrived_ns"),
        ),
        _count("prompt", "prompt_tokens", from_width=72),
        _count("cached", "cached_tokens", from_width=176),
        _count("output", "output_tokens", also=("tokens", "output")),
        _growing("queue", "queue_s", view, _queued_ns),
        _growing("prefill", "prefill_s", view, _prefilled_ns, from_width=168),
        _growing("ttft", "ttft_s", view, _first_token_awaited_ns),
        _duration("tpot", "tpot_s", from_width=90),
        _duration("itl", "itl_last_s", from_width=156, also=("itl",)),
        _duration("itl_max", "itl_max_s", from_width=120),
        _growing("e2el", "e2el_s", view, _lives_ns),
        TableColumn(
            "preemptions",
            label_of("request.preemptions"),
            5,
            _preemptions,
            value=lambda row: row.preemptions,
            right=True,
            from_width=126,
            filter=_field("preemptions", FieldKind.COUNT, also=("preemptions",)),
            rank=rank_of("preemptions"),
            tells=tells("preemptions"),
        ),
        _text("reason", "reason", 10, from_width=136),
        TableColumn(
            "slo",
            f"  {label_of('request.missed')}",
            14,
            _missed,
            value=missed_words,
            ascending=True,
            from_width=UNBOUNDED,
            filter=FilterField("slo", missed_words),
            rank=rank_of("slo"),
            tells=tells("missed"),
        ),
        _count("max", "max_tokens", from_width=UNBOUNDED, also=("max_tokens",)),
        TableColumn(
            "temperature",
            label_of("request.temperature"),
            6,
            _temperature,
            value=lambda row: row.temperature,
            right=True,
            from_width=UNBOUNDED,
            filter=_field("temperature", FieldKind.NUMBER, also=("temperature",)),
            rank=rank_of("temperature"),
            tells=tells("temperature"),
        ),
        _cause("cause", 20, TTFT_CAUSES, from_width=110),
        _cause(
            "itl_cause",
            14,
            ITL_CAUSES,
            from_width=192,
            also=("late",),
        ),
        _model(view),
        TableColumn(
            "priority",
            label_of("request.priority"),
            9,
            lambda row, _: TextRun(
                UNKNOWN if row.priority is None else str(row.priority)
            ),
            value=lambda row: row.priority,
            right=True,
            from_width=UNBOUNDED,
            filter=_field("priority", FieldKind.COUNT),
            rank=rank_of("priority"),
            tells=tells("priority"),
        ),
        _text("class", "class_name", 12, from_width=UNBOUNDED),
        _text("header", "header", 16, from_width=UNBOUNDED),
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


def tells(name: str) -> str:
    """What the catalog says of a fact of a request."""
    return CATALOG[f"request.{name}"].help


def _text(
    key: str, name: str, width: int, *, from_width: int
) -> TableColumn[RequestRow]:
    """A column of what others wrote, named in the catalog; cut where it is long."""
    value = attrgetter(name)

    def write(row: RequestRow, _: int) -> TextRun:
        return TextRun(f"  {value(row) or ''}", "muted")

    label = label_of(f"request.{name}")
    return TableColumn(
        key,
        f"  {label}",
        width,
        write,
        value=value,
        from_width=from_width,
        filter=FilterField(label, value),
        rank=rank_of(key),
        tells=tells(name),
    )


def _cause(
    key: str,
    width: int,
    causes: Iterable[Cause],
    *,
    from_width: int,
    also: Sequence[str] = (),
) -> TableColumn[RequestRow]:
    value = attrgetter(key)

    def write(row: RequestRow, _: int) -> TextRun:
        return cause_run(value(row))

    def words(row: RequestRow) -> str | None:
        cause: Cause | None = value(row)
        return None if cause is None else words_of_cause(cause)

    label = label_of(f"request.{key}")
    return TableColumn(
        key,
        f" {label}",
        width,
        write,
        value=value,
        ascending=True,
        from_width=from_width,
        filter=FilterField(
            label.replace(" ", "_"),
            words,
            choices=[words_of_cause(each) for each in causes],
            also=also,
        ),
        rank=rank_of(key),
        tells=tells(key),
    )


def words_of_cause(cause: Cause) -> str:
    """A cause as it is typed, without spaces.

    >>> words_of_cause(Cause.QUEUE_KV)
    'queue_kv_blocks'
    """
    return NO_WORD.sub("_", cause.value.lower())


def cause_run(cause: Cause | None) -> TextRun:
    """A cause in a cell."""
    return TextRun(f" {cause or UNKNOWN}", _cause_ink(cause))


def _cause_ink(cause: Cause | None) -> str:
    """As the phases that they are parts of."""
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
        f"  {label_of('request.lora')}",
        16,
        write,
        value=value,
        ascending=True,
        from_width=UNBOUNDED,
        filter=FilterField("model", value, also=("lora",)),
        rank=rank_of("model"),
        tells=tells("lora"),
    )


def _duration(
    key: str, name: str, *, from_width: int = 0, also: Sequence[str] = ()
) -> TableColumn[RequestRow]:
    """A column of milliseconds, named in the catalog."""
    value = attrgetter(name)

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = value(row)
        text = format_in(MILLISECONDS, seconds)
        return TextRun(text, "faint" if seconds is None else "")

    title = _in_ms(f"request.{name}")
    return TableColumn(
        key,
        title,
        max(len(title) + 1, 9),
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(name, FieldKind.DURATION, also=also),
        rank=rank_of(key),
        tells=tells(name),
    )


def _growing(
    key: str,
    name: str,
    view: RequestView,
    since_ns: Callable[[RequestRow], int | None],
    *,
    from_width: int = 0,
) -> TableColumn[RequestRow]:
    """Milliseconds, and while they grow what they will be at least, with a ``+``.

    ``since_ns`` tells since when they grow, None once they do not.
    """
    known = attrgetter(name)

    def at_least(row: RequestRow) -> float | None:
        seconds: float | None = known(row)
        began_ns = since_ns(row) if seconds is None else None
        if began_ns is None:
            return seconds
        return max(view.now_ns - began_ns, 0) / NS_PER_S

    def write(row: RequestRow, _: int) -> TextRun:
        seconds = at_least(row)
        text = format_in(MILLISECONDS, seconds)
        if seconds is None:
            return TextRun(f"{text} ", "faint")
        if known(row) is None:
            return TextRun(f"{text}+", "muted")
        return TextRun(f"{text} ")

    title = f"{_in_ms(f'request.{name}')} "
    return TableColumn(
        key,
        title,
        max(len(title) + 1, 10),
        write,
        value=at_least,
        right=True,
        from_width=from_width,
        filter=replace(_field(name, FieldKind.DURATION), at_least=at_least),
        rank=rank_of(key),
        tells=tells(name),
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


def _in_ms(key: str) -> str:
    """The title says the unit, so that all cells below it share one."""
    return f"{label_of(key)} {MILLISECONDS.name}"


def _count(
    key: str, name: str, *, from_width: int = 0, also: Sequence[str] = ()
) -> TableColumn[RequestRow]:
    """A column of whole numbers, named in the catalog."""
    value = attrgetter(name)

    def write(row: RequestRow, _: int) -> TextRun:
        return TextRun(format_count(value(row)).strip())

    title = label_of(f"request.{name}")
    return TableColumn(
        key,
        title,
        7,
        write,
        value=value,
        right=True,
        from_width=from_width,
        filter=_field(name, FieldKind.COUNT, also=also),
        rank=rank_of(key),
        tells=tells(name),
    )


def _field(
    name: str, kind: FieldKind, *, also: Sequence[str] = ()
) -> FilterField[RequestRow]:
    """A number of a request, called as the catalog does: ``ttft``, ``max_itl``."""
    label = label_of(f"request.{name}").lower().replace(" ", "_")
    return FilterField(label, attrgetter(name), kind, also=also)


def _state(row: RequestRow, _: int) -> TextRun:
    """What missed its objectives is marked, whatever columns there are."""
    glyph, ink = STATES[row.state]
    if row.missed:
        return TextRun(f" {glyph} {row.state.value} {MISSED}", "warn")
    return TextRun(f" {glyph} {row.state.value}", ink)


def _missed(row: RequestRow, _: int) -> TextRun:
    if row.missed is None:
        return TextRun(f"  {UNKNOWN}", "faint")
    names = " ".join(
        "failed" if m == FAILED else LATENCIES[m].label for m in row.missed
    )
    return TextRun(f"  {MISSED}{names}", "warn") if names else TextRun("  ✓", "muted")


def missed_words(row: RequestRow) -> str | None:
    """As filters find it: ``slo:missed``, ``slo:held``, ``slo:ttft``."""
    if row.missed is None:
        return None
    names = [
        "failed" if m == FAILED else LATENCIES[m].label.lower() for m in row.missed
    ]
    return " ".join(["missed", *names]) if names else "held"


def _id(row: RequestRow, width: int) -> TextRun:
    name = row.name
    for prefix in ("chatcmpl-", "cmpl-"):
        name = name.removeprefix(prefix)
    return TextRun(end_of(name, width - 1), "" if row.state.live else "muted")


def end_of(name: str, room: int) -> str:
    """What tells names apart: they share their beginning, so it goes first."""
    name, room = visible(name[-LONG:]), max(room, 1)
    if cells_of(name) <= room:
        return name
    while cells_of(name) > room - 1 and name:
        name = name[max(cells_of(name) - room + 1, 2) // 2 :]
    return f"…{name}"


LONG = 400
"""Characters; of a longer name only the end can be in sight."""


def _ids(row: RequestRow) -> str:
    return f"{row.external_id or ''} {row.request_id}"


def _preemptions(row: RequestRow, _: int) -> TextRun:
    return TextRun(str(row.preemptions), "warn" if row.preemptions else "faint")


def _temperature(row: RequestRow, _: int) -> TextRun:
    known = row.temperature is not None
    return TextRun(
        f"{row.temperature:g}" if known else UNKNOWN, "" if known else "faint"
    )
