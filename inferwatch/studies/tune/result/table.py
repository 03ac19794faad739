"""The table of a tune's settings: its columns and their cells."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_figure,
    format_in,
    format_rate,
    format_share,
    shared_unit,
)
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.studies.compare.report import span_text
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.plot import marks_of
from inferwatch.studies.tune.result.tune_result import PointResult, TuneResult
from inferwatch.studies.tune.result.verdict import values_text
from inferwatch.studies.tune.space import Point
from inferwatch.visible import visible

BEST, LIKE_BEST, PRESENT = "★", "≈", "●"
SIGNS = {
    BEST: "the best",
    LIKE_BEST: "not told apart from the best",
    PRESENT: "the present setting",
}
FRONTIER = (
    "capital letter: on the frontier, no other has both more tokens/s and a lower "
    "TTFT p99"
)
_FIGURES = re.compile(r"[\d.,]+")
Interval = tuple[float, float] | None
Values = Callable[[Sequence[float | None]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultColumn:
    """A column, with one cell for each measured setting."""

    name: str
    head: str
    """A short head that includes the unit."""
    texts: tuple[str, ...]
    needed: bool = False
    """Whether it is shown however narrow the table is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """The measured settings, best first, and those without a number."""

    flags: str
    """The flags whose values a setting lists, in this order."""
    marks: tuple[str, ...]
    signs: tuple[str, ...]
    settings: tuple[str, ...]
    columns: tuple[ResultColumn, ...]
    others: tuple[tuple[str, str, str], ...]
    """Setting, outcome and cause."""
    doubts: tuple[tuple[str, str], ...]
    """Settings, each with a reason to doubt them."""
    answers: tuple[tuple[str, str], ...]
    """Settings, each with how its answers compare with the present's."""

    @property
    def legend(self) -> list[str]:
        used = "".join(self.signs)
        texts = [f"{sign} {means}" for sign, means in SIGNS.items() if sign in used]
        leads = any(mark.isupper() for mark in self.marks)
        return [*texts, *([FRONTIER] if leads else []), "n times measured"]


def result_table(result: TuneResult, plan: TunePlan) -> ResultTable:
    small = marks_of(result)
    rows = [result.points[place] for place in small]
    marks = [
        mark.upper() if result.points[place].on_frontier else mark
        for place, mark in small.items()
    ]
    others = [each for n, each in enumerate(result.points) if n not in small]
    return ResultTable(
        flags=" · ".join(flag for flag, _ in plan.vary),
        marks=tuple(marks),
        signs=tuple(_signs(result, each) for each in rows),
        settings=tuple(visible(values_text(each.point)) for each in rows),
        columns=tuple(_columns(result, plan, rows)),
        others=tuple((values_text(e.point), *_outcome(e)) for e in others),
        doubts=tuple(_merged((e.point, d) for e in rows for d in _kinds(e.doubts))),
        answers=tuple(_merged((e.point, e.answers) for e in rows if e.answers)),
    )


def _signs(result: TuneResult, each: PointResult) -> str:
    """The setting's signs: best, or not told apart from the best, and present."""
    best = result.best is not None and each.point == result.best.point
    present = result.present is not None and each.point == result.present.point
    has_interval = result.best is not None and result.best.span is not None
    like = BEST if best else LIKE_BEST if each.like_best and has_interval else ""
    return like + (PRESENT if present else "")


def _outcome(each: PointResult) -> tuple[str, str]:
    """How the setting ended and why; no reason if it was not measured."""
    measured = each.outcome.value == "measured"
    if measured and each.cause is None:
        return "not measured", ""
    return ("no number" if measured else each.outcome.value), each.cause or ""


def _kinds(doubts: Sequence[str]) -> Iterator[str]:
    """One doubt per kind, as trials of one setting differ only in figures."""
    kinds: dict[str, list[str]] = {}
    for doubt in doubts:
        kinds.setdefault(_FIGURES.sub("", doubt.partition(":")[0]), []).append(doubt)
    for first, *alike in kinds.values():
        yield f"{first} (and {len(alike)} more alike)" if alike else first


def _merged(each: Iterable[tuple[Point, str]]) -> Iterator[tuple[str, str]]:
    """Merge settings that have the same text."""
    by_sentence: dict[str, list[Point]] = {}
    for point, sentence in each:
        by_sentence.setdefault(sentence, []).append(point)
    for sentence, points in by_sentence.items():
        yield ", ".join(map(values_text, points)), sentence


def _columns(
    result: TuneResult, plan: TunePlan, rows: Sequence[PointResult]
) -> Iterator[ResultColumn]:
    goal = plan.goal
    yield from _score(goal, plan.currency, rows)
    yield ResultColumn(
        name="against the present",
        head="vs present",
        texts=tuple(_against(result, each) for each in rows),
        needed=True,
    )
    if goal is not Goal.TOKENS:
        tokens = tuple(format_rate(each.tokens_per_s) for each in rows)
        yield ResultColumn(
            name="output tokens/s", head="tokens/s", texts=tokens, needed=True
        )
    if goal is not Goal.LATENCY:
        ttfts_s = [each.ttft_p99_s for each in rows]
        yield _durations("TTFT p99", ttfts_s, needed=True)
    if any(each.tpot_p99_s is not None for each in rows):
        yield _durations("TPOT p99", [each.tpot_p99_s for each in rows])
    if any(each.good_share is not None for each in rows):
        yield ResultColumn(
            name="share of good requests",
            head="good",
            texts=tuple(format_share(each.good_share) for each in rows),
        )
    yield ResultColumn(
        name="times measured",
        head="n",
        texts=tuple(format_count(each.trials).strip() for each in rows),
        needed=True,
    )


def _score(
    goal: Goal, currency: str, rows: Sequence[PointResult]
) -> Iterator[ResultColumn]:
    scores = [each.score for each in rows]
    spans = [each.span for each in rows]
    name, head, texts = _score_form(goal, currency, scores, spans)
    yield ResultColumn(name=name, head=head, texts=tuple(texts(scores)), needed=True)
    ends = [texts(span) if span is not None else None for span in spans]
    yield ResultColumn(
        name=f"95% interval of {name}",
        head="95% interval",
        texts=tuple("–".join(e.strip() for e in each or (UNKNOWN,)) for each in ends),
        needed=True,
    )


def _score_form(
    goal: Goal,
    currency: str,
    scores: Sequence[float | None],
    spans: Sequence[Interval],
) -> tuple[str, str, Values]:
    if goal is Goal.LATENCY:
        ends = [end for span in spans for end in span or ()]
        unit = shared_unit([*scores, *ends])
        return (
            f"TTFT p99, {unit.name}",
            f"TTFT p99 {unit.name}",
            lambda values: [format_in(unit, each) for each in values],
        )
    if goal is Goal.COST:
        name = f"{currency} per million good output tokens"
        return name, f"{currency}/M good", lambda v: list(map(format_figure, v))
    name, head = {
        Goal.GOODPUT: ("good requests/s", "good/s"),
        Goal.TOKENS: ("output tokens/s", "tokens/s"),
        Goal.KNEE: (f"requests/s of which {DEFAULT_SHARE:.0%} are good", "knee/s"),
    }[goal]
    return name, head, lambda values: list(map(format_rate, values))


def _durations(
    name: str, values: Sequence[float | None], *, needed: bool = False
) -> ResultColumn:
    unit = shared_unit(values)
    return ResultColumn(
        name=f"{name}, {unit.name}",
        head=f"{name} {unit.name}",
        texts=tuple(format_in(unit, each) for each in values),
        needed=needed,
    )


def _against(result: TuneResult, each: PointResult) -> str:
    if result.present is not None and each.point == result.present.point:
        return "present"
    return span_text(each.against_present)
