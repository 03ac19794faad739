"""A preview of one request: its phases as a bar, and what the table knows of it."""

from collections.abc import Sequence

from inferwatch.formatting import format_count, format_duration, format_durations
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import Phase, waterfall
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled
from inferwatch.ui.requests.phases import PHASE_GLYPHS, STATES, phases


class RequestDetail(Panel):
    """The phases and facts of the request pointed at, as last known."""

    DEFAULT_CSS = """
    RequestDetail { height: 7; display: none; background: $surface; }
    """

    _row: RequestRow | None = None
    _arrived = ""
    _phases: Sequence[Phase] = ()

    def show(self, row: RequestRow, arrived: str, now_ns: int) -> None:
        """Take a request, and when it arrived."""
        self._row, self._arrived = row, arrived
        self._phases = phases(row, now_ns)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, waterfall with its legend, facts."""
        del height
        if self._row is None:
            return ()
        row = self._row
        title = (
            TextRun("request ", "muted"),
            TextRun(row.name, "strong"),
        )
        more = (
            TextRun("enter", "accent", "screen.open_request"),
            TextRun(" why it was slow", "muted", "screen.open_request"),
        )
        bar = (TextRun("  "), *waterfall(self._phases, max(width - 4, 1), PHASE_GLYPHS))
        rows = (_legend(self._phases), (), *_facts(row, self._arrived))
        return [
            ruled(title, more, width),
            bar,
            *(fit((TextRun("  "), *line), width) for line in rows),
        ]


def _legend(spent: Sequence[Phase]) -> Line:
    texts = format_durations(seconds for _, seconds, _ in spent)
    return join(
        [
            (
                TextRun(f"{glyph} ", ink),
                TextRun(f"{name} ", "muted"),
                TextRun(text),
            )
            for glyph, (name, _, ink), text in zip(
                PHASE_GLYPHS, spent, texts, strict=True
            )
        ],
        "   ",
    )


def _facts(row: RequestRow, arrived: str) -> list[Line]:
    glyph, ink = STATES[row.state]
    state = (
        TextRun(f"{glyph} {row.state.value}", ink),
        TextRun(f" {row.reason or ''}", "muted"),
    )
    return [
        join(
            (state, _fact("arrived", arrived), _fact("internal id", row.request_id)),
            "   ",
        ),
        join(
            (
                _fact("prompt", _count(row.prompt_tokens)),
                _fact("cached", _count(row.cached_tokens)),
                _fact("output", _output(row)),
                _fact("temperature", _plain(row.temperature)),
                _fact("preemptions", str(row.preemptions)),
            ),
            "   ",
        ),
        join(
            (
                _fact("TTFT", format_duration(row.ttft_s)),
                _fact("TPOT", format_duration(row.tpot_s)),
                _fact("ITL last", format_duration(row.itl_last_s)),
                _fact("ITL max", format_duration(row.itl_max_s)),
                _fact("E2EL", format_duration(row.e2el_s)),
            ),
            "  ",
        ),
    ]


def _output(row: RequestRow) -> str:
    return f"{_count(row.output_tokens)} of {_count(row.max_tokens)}"


def _count(count: int | None) -> str:
    return format_count(count).strip()


def _fact(label: str, value: str) -> Line:
    return (TextRun(f"{label} ", "muted"), TextRun(value))


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
