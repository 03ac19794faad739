"""One step and the requests in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from collectors.contract.readings import Step
from inferwatch.formatting import counted
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells,
    fact,
    fit,
    join,
    ruled,
    spread,
)
from inferwatch.ui.steps.columns import prefilling
from inferwatch.ui.widgets.totals import Fact
from inferwatch.visible import visible

NARROW = 100
ID_WIDTH = 40
FACT_ROWS = 2


@dataclass(frozen=True, slots=True)
class Member:
    """A request in a step."""

    ordinal: int
    scheduled: int
    produced: int
    prefills: bool
    row: RequestRow | None
    """None if the row was evicted."""

    @property
    def name(self) -> str:
        if self.row is None:
            return f"#{self.ordinal & ((1 << 40) - 1)}"
        return visible(self.row.name)


def members_of(step: Step, rows: Mapping[int, RequestRow]) -> list[Member]:
    """Return a step's members: prefilled ones by their tokens, then the others."""
    first = prefilling(step)
    members = [
        Member(ordinal, scheduled, produced, place in first, rows.get(ordinal))
        for place, (ordinal, scheduled, produced) in enumerate(
            zip(step.members, step.scheduled, step.produced, strict=False)
        )
    ]
    return sorted(
        members, key=lambda each: (not each.prefills, -each.scheduled * each.prefills)
    )


class StepPanel(Panel):
    """The facts of a step and a list of its requests."""

    DEFAULT_CSS = """
    StepPanel { height: 8; }
    """

    @dataclass
    class MemberOpened(Message):
        """The selected request was clicked again."""

    _title = ""
    _aside = ""
    _facts: Sequence[Sequence[Fact]] = ()
    _members: Sequence[Member] = ()
    _profiled: Line = ()
    _at = 0
    _top = 0

    def show(
        self,
        title: str,
        aside: str,
        facts: Sequence[Sequence[Fact]],
        members: Sequence[Member],
        profiled: Line = (),
    ) -> None:
        """Show a step; the selected request stays selected if it is in the step.

        ``profiled`` says where a profiled step's time went.
        """
        chosen = self.chosen
        self._title, self._aside, self._facts = title, aside, facts
        self._members, self._profiled = members, profiled
        same = (
            place
            for place, each in enumerate(members)
            if chosen is not None and each.ordinal == chosen.ordinal
        )
        self._at = next(same, 0)
        self.redraw()

    @property
    def chosen(self) -> Member | None:
        return self._members[self._at] if self._at < len(self._members) else None

    def choose(self, by: int) -> None:
        last = max(len(self._members) - 1, 0)
        self._at = min(max(self._at + by, 0), last)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Select the request under the mouse, or open it if it is selected."""
        above = len(self._fact_rows) + bool(self._profiled)
        place = event.y - 1 - above - 1 + self._top
        if event.y <= above + 1 or place >= len(self._members):
            return
        if place == self._at:
            self.post_message(self.MemberOpened())
        self._at = place
        self.redraw()

    @property
    def _fact_rows(self) -> Sequence[Sequence[Fact]]:
        return self._facts[:FACT_ROWS]

    def draw(self, width: int, height: int) -> Sequence[Line]:
        right = (TextRun(self._aside, "muted"),) if self._aside else ()
        lines = [ruled((TextRun(self._title, "strong"),), right, width)]
        lines += [_fact_line(row, width) for row in self._fact_rows]
        lines += [fit(self._profiled, width)] * bool(self._profiled)
        if not self._members:
            return lines
        room = max(height - len(lines) - 1, 1)
        last = max(len(self._members) - room, 0)
        top = min(max(self._top, self._at - room + 1), self._at, last)
        self._top = max(top, 0)
        lines.append(self._head(room, width))
        visible = self._members[self._top : self._top + room]
        lines += [
            self._line(each, place == self._at, width)
            for place, each in enumerate(visible, self._top)
        ]
        return lines

    def _head(self, room: int, width: int) -> Line:
        count = len(self._members)
        below = count - self._top - room
        more = f"{below} more below" if below > 0 else ""
        titles = _row("  request", "phase", "tokens", "out", _id_width(width))
        return spread(
            (TextRun(titles, "muted"),), (TextRun(f"{more} ", "faint"),), width
        )

    def _line(self, member: Member, chosen: bool, width: int) -> Line:  # noqa: FBT001
        room = _id_width(width)
        mark = "▶ " if chosen else "  "
        ink = "prefill" if member.prefills else "decode"
        phase = "prefill" if member.prefills else "decode"
        name = cells(mark + member.name, room, "strong" if chosen else "")
        rest = f" {phase:<8}{member.scheduled:>7,}{member.produced:>5,}"
        line: Line = (name, TextRun(rest[:9], ink), TextRun(rest[9:]))
        row = member.row
        if row is not None and width >= NARROW:
            state = f"   {row.state.value}, prompt {_count(row.prompt_tokens)}"
            line = (*line, TextRun(state, "muted"))
        return fit(line, width)


def _id_width(width: int) -> int:
    return min(ID_WIDTH + 2, max(width - 24, 8))


def _row(name: str, phase: str, tokens: str, out: str, room: int) -> str:
    return f"{name:<{room}} {phase:<8}{tokens:>7}{out:>5}"


def _count(value: int | None) -> str:
    return counted(value, "token").strip()


def _fact_line(row: Sequence[Fact], width: int) -> Line:
    facts = [fact(label, value.strip(), ink or "muted") for label, value, ink in row]
    return fit((TextRun("  "), *join(facts, "   ")), width)
