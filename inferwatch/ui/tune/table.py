"""The settings of a tune with their intervals drawn."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import format_duration, format_rate
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.progress import TuneProgress
from inferwatch.studies.tune.result.table import PRESENT
from inferwatch.studies.tune.result.verdict import HEADS, score_text
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells_of, fit, spread
from inferwatch.ui.kit.table import CursorTable, TableColumn
from inferwatch.ui.tune.rows import GLYPHS, RowState, TuneRow

Span = tuple[float, float]
NAMES = ("max-num-", "enable-")
"""Prefixes of flags that titles leave out."""
MOST_CELLS = 22
"""Widest column of a variable."""
BAR, POINT = "━", "●"
FROM_BELOW, BEYOND_IT = "◂", "▸"
"""Ends of an interval beyond the scale."""
BEYOND = 0.5
"""Share of the range of scores by which intervals may widen the scale."""
LEAST_EXTENT = 0.1
"""Least range of the scale, as a share of a score."""


class TuneTable(CursorTable[TuneRow]):
    """Settings ranked by score, then those to come, then those that failed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up",
            "step(-1)",
            "setting",
            key_display="↑ ↓",
            tooltip="Another setting: why it stands so",
        ),
        Binding("down", "step(1)", "down", show=False),
        Binding(
            "enter",
            "open",
            "details",
            tooltip="All that is known of this setting: its trials, sessions, causes",
        ),
        Binding("home", "step(-1000)", "first", show=False),
        Binding("end", "step(1000)", "last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(())
        self._shown: tuple[object, ...] = ()

    def show(self, progress: TuneProgress, rows: Sequence[TuneRow]) -> None:
        self.columns = tuple(_columns(progress, rows))
        self.show_rows(rows)

    def key_of(self, row: TuneRow) -> str:
        return row.key


def _columns(
    progress: TuneProgress, rows: Sequence[TuneRow]
) -> Iterable[TableColumn[TuneRow]]:
    goal = progress.goal
    span = _extent(rows)
    yield TableColumn("mark", "", 3, _mark)
    for place, variable in enumerate(progress.space.variables):
        values = (row.point.value(variable.flag) or "–" for row in rows)
        head = heading(variable.flag)
        width = min(max(cells_of(head), *map(cells_of, values)) + 2, MOST_CELLS)
        yield TableColumn(
            f"flag{place}", head, width, _value(variable.flag), right=True, gap=1
        )
    yield TableColumn("trials", "n", 3, _trials, right=True)
    yield TableColumn("score", HEADS[goal], 10, _score(goal), right=True, ink="accent")
    yield TableColumn(
        "bar", _scale(goal, span), 14, _bar(span), least=10, grows=3, most=44
    )
    if goal is not Goal.LATENCY:
        yield TableColumn("ttft", "TTFT p99", 9, _ttft, right=True, from_width=70)
    if goal is not Goal.TOKENS:
        yield TableColumn("tokens", "tok/s", 8, _tokens, right=True, from_width=90)
    yield TableColumn("state", "  how it stands", 14, _state, least=0)


def heading(flag: str) -> str:
    """Return a flag as the title of a column.

    >>> heading("max-num-batched-tokens"), heading("block-size")
    ('batched-tokens', 'block-size')
    """
    for begin in NAMES:
        flag = flag.removeprefix(begin)
    return flag


def _mark(row: TuneRow, width: int) -> Line:
    glyph, ink = GLYPHS[row.state]
    now = TextRun("▶" if row.is_now else " ", "accent")
    here = TextRun(PRESENT if row.is_present else " ", "accent")
    return (now, TextRun(glyph, ink), here, TextRun(" " * (width - 3)))


def _value(flag: str) -> Callable[[TuneRow, int], TextRun]:
    def write(row: TuneRow, width: int) -> TextRun:
        del width
        return TextRun(row.point.value(flag) or "–", "strong" if row.is_now else "")

    return write


def _trials(row: TuneRow, width: int) -> TextRun:
    del width
    return TextRun(str(len(row.trials) or "–"), "muted")


def _score(goal: Goal) -> Callable[[TuneRow, int], TextRun]:
    def write(row: TuneRow, width: int) -> TextRun:
        del width
        best = row.state is RowState.BEST
        return TextRun(score_text(goal, row.standing.score), "strong" if best else "")

    return write


def _ttft(row: TuneRow, width: int) -> TextRun:
    del width
    return TextRun(format_duration(row.result.ttft_p99_s if row.result else None))


def _tokens(row: TuneRow, width: int) -> TextRun:
    del width
    return TextRun(format_rate(row.result.tokens_per_s if row.result else None))


def _state(row: TuneRow, width: int) -> Line:
    ink = GLYPHS[row.state][1]
    text = row.said
    if cells_of(text) > width - 2:
        text = text.removesuffix(" the best")
    line: Line = (TextRun("  "), TextRun(text, ink))
    if row.is_present:
        line = (*line, TextRun("  present", "accent"))
    return spread(fit(line, width), (), width)


def _extent(rows: Sequence[TuneRow]) -> Span | None:
    """Return the range of all scores, widened by intervals up to a limit."""
    standings = [row.standing for row in rows if row.standing.score is not None]
    scores = [each.score for each in standings if each.score is not None]
    if not scores:
        return None
    low, high = min(scores), max(scores)
    extent = max(high - low, abs(high) * LEAST_EXTENT) or 1.0
    ends = [end for each in standings for end in each.span or ()]
    low = max(min([low, *ends]), low - extent * BEYOND)
    high = min(max([high, *ends]), high + extent * BEYOND)
    pad = (high - low) * 0.02 or extent
    return max(low - pad, 0.0), high + pad


def _scale(goal: Goal, span: Span | None) -> str:
    if span is None:
        return ""
    low, high = (score_text(goal, end).strip() for end in span)
    return f" {low}–{high}"


def _bar(extent: Span | None) -> Callable[[TuneRow, int], Line]:
    def write(row: TuneRow, width: int) -> Line:
        score = row.standing.score
        room = width - 1
        if extent is None or score is None or room < 3:
            return (TextRun(" " * width),)
        return (TextRun(" "), *interval_bar(score, row.standing.span, extent, room))

    return write


def interval_bar(score: float, span: Span | None, extent: Span, width: int) -> Line:
    """Draw a score and its interval, on the scale that all rows share.

    >>> "".join(r.text for r in interval_bar(5, (3, 8), (0, 10), 11))
    '   ━━●━━━  '
    >>> "".join(r.text for r in interval_bar(5, (3, 80), (0, 10), 11))
    '   ━━●━━━━▸'
    """
    low, high = extent

    def at(value: float) -> int:
        share = (value - low) / ((high - low) or 1.0)
        return min(max(round(share * (width - 1)), 0), width - 1)

    row, inks = [" "] * width, [""] * width
    for column in range(at(span[0]), at(span[1]) + 1) if span else ():
        row[column], inks[column] = BAR, "accent"
    if span and span[0] < low:
        row[0] = FROM_BELOW
    if span and span[1] > high:
        row[-1] = BEYOND_IT
    row[at(score)], inks[at(score)] = POINT, "strong"
    return tuple(TextRun(sign, ink) for sign, ink in zip(row, inks, strict=True))
