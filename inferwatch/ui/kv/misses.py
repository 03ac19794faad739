"""Why prompts missed the prefix cache: the causes, and groups of alike prompts."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.formatting import (
    about,
    counted,
    format_count,
    format_duration,
    format_share,
)
from inferwatch.metrics.cache.misses import (
    ADVICE,
    MissCause,
    MissGroup,
    MissShare,
    PrefixMisses,
)
from inferwatch.metrics.number import label_of, number_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import NEXT_LOOK, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join_whole,
    ruled,
    wrapped,
)
from inferwatch.ui.kit.table import CursorTable, TableColumn

NOTHING_YET = "no prompt has ended in this window whose blocks were told"
INKS = {
    MissCause.EVICTED: "bad",
    MissCause.FIRST_DIFFERS: "warn",
    MissCause.DIFFERS_LATER: "kv",
    MissCause.OTHER_SALT: "warn",
    MissCause.OTHER_ADAPTER: "warn",
}


class MissPanel(Panel):
    """A sentence, what would help, and a bar of what was hit and missed."""

    DEFAULT_CSS = """
    MissPanel { height: 8; }
    """

    _misses: PrefixMisses | None = None
    _nothing = NOTHING_YET
    _span = ""

    def show(self, snapshot: Snapshot) -> None:
        self._misses, self._span = snapshot.prefix_misses, snapshot.window.span
        self._nothing = NOTHING_YET if snapshot.asked.misses else NEXT_LOOK
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        misses = self._misses
        aside = f"engine, {self._span}"
        if misses is not None:
            aside += f", the latest {counted(misses.prompts, 'prompt')}"
        title = (TextRun("Why prompts missed the prefix cache", "strong"),)
        head = ruled(title, (TextRun(aside, "muted"),), width)
        if misses is None or not misses.prompts:
            return [head, (TextRun(f"  {self._nothing}", "faint"),)]
        lines = [head, *wrapped(misses.sentence, width, "")]
        if misses.worst is not None:
            lines += wrapped(ADVICE[misses.worst.cause], width, "muted")
        return [*lines, *self._causes(misses, width), self._would_be(misses, width)][
            :height
        ]

    def _causes(self, misses: PrefixMisses, width: int) -> Sequence[Line]:
        """Return the bar of hits and misses, and its legend."""
        shares = [("found", "cached", misses.total.hit_tokens)]
        shares += [
            (str(each.cause), INKS.get(each.cause, "muted"), each.tokens)
            for each in misses.total.missed
        ]
        room, bar, before, at = width - 4, [TextRun("  ")], 0, 0
        for place, (_, ink, tokens) in enumerate(shares):
            before += tokens
            until = round(misses.share_of(before) * room)
            bar.append(TextRun(("█" if place % 2 == 0 else "▓") * (until - at), ink))
            at = until
        parts = (
            (
                TextRun(f"{name} ", ink),
                TextRun(self._text(misses.share_of(tokens), misses)),
            )
            for name, ink, tokens in shares
        )
        legend = join_whole(parts, width - 2, "  ")
        return [tuple(bar), (TextRun("  "), *legend)]

    def _would_be(self, misses: PrefixMisses, width: int) -> Line:
        total = misses.total
        reordered = "not known"
        if total.reordered_tokens is not None:
            share = self._text(misses.share_of(total.reordered_tokens), misses)
            reordered = f"≥{share}"
        line = (
            TextRun("  would also hit: ", "muted"),
            TextRun(f"{label_of(MissGroup.unlimited_tokens)} ", "muted"),
            TextRun(self._text(misses.share_of(total.unlimited_tokens), misses)),
            TextRun(f", {label_of(MissGroup.reordered_tokens)} ", "muted"),
            TextRun(reordered),
        )
        return fit(line, width)

    @staticmethod
    def _text(share: float, misses: PrefixMisses) -> str:
        text = format_share(share).strip()
        return about(text) if misses.estimated else text


class MissTable(CursorTable[MissGroup]):
    """Groups of alike prompts, those that missed most first."""

    DEFAULT_CSS = """
    MissTable { min-height: 3; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="A request of this group that missed"),
    ]
    MARGIN = 1
    _told = False

    def __init__(self) -> None:
        super().__init__(_columns(), sorted_by="missed")

    def show(self, misses: PrefixMisses | None) -> None:
        self._told = misses is not None
        self.show_rows(() if misses is None else misses.groups)

    def key_of(self, row: MissGroup) -> str:
        return row.key

    def words_of(self, row: MissGroup) -> Iterable[str | None]:
        return (row.key, *(str(each.cause) for each in row.missed))

    def empty_text(self) -> TextRun:
        return TextRun("no prompts are alike" if self._told else "", "muted")


def _columns() -> Iterable[TableColumn[MissGroup]]:
    return (
        TableColumn(
            "cause",
            f" {label_of(MissShare.cause)}",
            22,
            lambda row, _: TextRun(f" {_cause(row)}"),
            value=_cause,
            ascending=True,
            gap=1,
        ),
        _count("requests", MissGroup.requests, 8),
        TableColumn(
            "missed",
            label_of(MissGroup.missed),
            9,
            lambda row, _: TextRun(format_count(row.missed_tokens).strip()),
            value=attrgetter("missed_tokens"),
            right=True,
        ),
        TableColumn(
            "hit",
            label_of(MissGroup.hit_tokens),
            7,
            lambda row, _: TextRun(format_share(_hit(row)).strip()),
            value=_hit,
            right=True,
        ),
        TableColumn(
            "differs",
            label_of(MissGroup.differs_at),
            16,
            lambda row, _: TextRun(_differs(row)),
            value=attrgetter("differs_at"),
            right=True,
        ),
        TableColumn(
            "idle",
            label_of(MissGroup.idle_s),
            13,
            lambda row, _: TextRun(format_duration(_idle_s(row)).strip()),
            value=_idle_s,
            right=True,
        ),
        _count("reordered", MissGroup.reordered_tokens, 25, from_width=120),
        _count("unlimited", MissGroup.unlimited_tokens, 24, from_width=150),
    )


def _count(
    key: str, field: object, width: int, from_width: int = 0
) -> TableColumn[MissGroup]:
    number = number_of(field)
    value: Callable[[MissGroup], int | None] = attrgetter(number.name)

    def write(row: MissGroup, _: int) -> TextRun:
        return TextRun(format_count(value(row)).strip())

    return TableColumn(
        key, number.label, width, write, value=value, right=True, from_width=from_width
    )


def _cause(row: MissGroup) -> str:
    worst = next(iter(row.avoidable), None) or next(iter(row.missed), None)
    return "–" if worst is None else str(worst.cause)


def _hit(row: MissGroup) -> float | None:
    return row.hit_tokens / row.prompt_tokens if row.prompt_tokens else None


def _differs(row: MissGroup) -> str:
    if row.differs_at is None:
        return "–"
    text = f"{row.differs_at:,}"
    if row.differs_at_token is not None:
        text += f" (tok {row.differs_at_token:,})"
    return about(text) if row.estimated else text


def _idle_s(row: MissGroup) -> float | None:
    return None if row.idle_s is None else row.idle_s.p50
