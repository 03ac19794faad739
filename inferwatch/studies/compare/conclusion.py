"""The conclusion of a comparison, one sentence for all forms: which side to keep.

It says no more than the verdicts on the metrics: what is probable is called so; what
goes the other way but cannot be told keeps it from choosing.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferwatch.formatting import UNKNOWN, counted
from inferwatch.metrics.number import Better
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.quality import doubts
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.report import (
    at_another_load,
    engine_settings,
    more_text,
    title,
    values_text,
)
from inferwatch.studies.compare.runs.sides import label_of
from inferwatch.studies.compare.verdicts import MATTERS, MetricVerdict

SUBJECTS = ("goodput", "TTFT", "TPOT", "E2EL", "tokens/s")
"""What the sentence names, in this order, by the metrics' names."""
DECIDES = ("goodput", "E2EL", "tokens/s")
"""Which subject decides where some got better and some worse: the first that is known,
as each has in it what a request waits for and what its tokens take.
"""
IN_WORDS = {"TPOT": "time per token"}
STATISTICS = ("p50", "p99", "mean", "p90", None)
"""The one named of several statistics of a subject."""
BETTER = {MetricVerdict.BETTER, MetricVerdict.PROBABLY_BETTER}
WORSE = {MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE}
SURE = {MetricVerdict.BETTER, MetricVerdict.WORSE}
MOST_UNANSWERED = 0.05
TELLING_UNANSWERED = 0.2
"""From this difference of shares on, requests without an answer decide: latencies are
of answered ones alone, the quickest.
"""
MANY_TIMES = 2.0
"""From this ratio on a change is given as a multiple."""
MOST_FLAGS = 2
LONG_NAME = LONGEST_VALUE = 24
MOST_DOUBTS = 3
DOUBTS = {
    "model": "the models differ",
    "gpu": "the GPUs differ",
    "settings": "runs of one side differ",
    "limits": "limits changed on the way",
    "recording": "readings are missing",
    "client": "client too slow",
    "tool": "measured by different tools",
    "clocks": "GPU clocks differ",
    "drift": "one drifts",
    "warm-up": "one never settles",
    "order": "not run by turns",
    "length": "not equally long",
}
"""The checks that found a doubt, in few words, the gravest first.

Those of requests, load and host are said by themselves.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What became of one subject, by the metric that says it best."""

    subject: str
    result: MetricResult

    @property
    def is_better(self) -> bool:
        return self.result.verdict in BETTER

    @property
    def is_sure(self) -> bool:
        return self.result.verdict in SURE

    @property
    def text(self) -> str:
        probably = "" if self.is_sure else "probably "
        return f"{self.name} {probably}{how_much(self.result)}"

    @property
    def name(self) -> str:
        """``TTFT p50``; of the time per token, the usual one without its statistic."""
        words = IN_WORDS.get(self.subject)
        if words is None:
            return title(self.result)
        statistic = self.result.metric.statistic
        return words if statistic in {"p50", "mean"} else f"{words} {statistic}"


def conclusion(pair: SessionPair) -> str:
    """Which side to keep and why, how often it was measured, and what to do next.

    For example ``Keep max_num_seqs 32: with 4, TTFT p50 is 17× worse, time per token
    62% better; one run each, host busy: repeat twice``.
    """
    a, b = side_texts(pair)
    if pair.void:
        return f"{b} and {a} cannot be compared: {pair.void.removesuffix('.')}"
    found = [*_findings(pair)]
    return f"{_choice(pair, found, a, b)}; {basis(pair)}"


def _choice(pair: SessionPair, found: Sequence[_Finding], a: str, b: str) -> str:
    unanswered = _decisive_unanswered(pair)
    if not found and unanswered is None:
        return _nothing_found(pair, a, b)
    other = _value(pair, b)
    what = f"with {other}, {', '.join(_texts(found, unanswered))}"
    if at_another_load(pair):
        return f"No choice between {a} and {other}, as their loads differ: {what}"
    against = _against(pair, found, unanswered)
    if against is not None:
        return f"No choice yet between {a} and {other}: {what}{against}"
    better = _is_better(found) if unanswered is None else unanswered.is_better
    if better is None:
        return f"{a} or {other} is a trade: {what}"
    is_sure = unanswered is None and all(each.is_sure for each in found)
    verb, which = ("take", b) if better else ("keep", a)
    verb = verb.capitalize() if is_sure else f"Probably {verb}"
    return f"{verb} {which}: {what}"


def _texts(
    found: Sequence[_Finding], unanswered: "_Unanswered | None"
) -> Iterator[str]:
    """What is different with the second side; the first latency has its verb."""
    if unanswered is not None:
        yield unanswered.instead
    for place, each in enumerate(found):
        is_first = place == 0
        yield each.text.replace(f"{each.name} ", f"{each.name} is ", int(is_first))


def _against(
    pair: SessionPair, found: Sequence[_Finding], unanswered: "_Unanswered | None"
) -> str | None:
    """What keeps it from choosing, unless the sentence has said that; None: nothing."""
    if unanswered is not None:
        others = {each.is_better for each in found}
        return "" if others == {not unanswered.is_better} else None
    contrary = _contrary(pair, found)
    if contrary is None:
        return None
    before, after = (each.strip() for each in values_text(contrary))
    name = _Finding(subject=contrary.metric.name, result=contrary).name
    return f", but {name} cannot be told ({before} against {after})"


def _nothing_found(pair: SessionPair, a: str, b: str) -> str:
    same, still_open = pair.of(MetricVerdict.SAME), pair.of(MetricVerdict.OPEN)
    both = f"{a} and {_value(pair, b)}"
    loads = ", though their loads differ" if at_another_load(pair) else ""
    if len(same) > len(still_open):
        rows = counted(len(same), "row")
        of = f"in {rows} of {len(pair.results)}{loads}"
        return f"No difference shown between {both}, {of}"
    needs = [each for each in still_open if more_text(each, pair)]
    nearest = min(
        needs,
        key=lambda e: (-e.metric.weight, e.more_runs or 0, e.more_requests or 0),
        default=None,
    )
    would = ""
    if nearest is not None:
        would = f": {more_text(nearest, pair)} a side would tell {title(nearest)}"
    return f"Cannot tell {both} apart yet{loads}{would}"


def _findings(pair: SessionPair) -> Iterator[_Finding]:
    """The subjects that changed: surely, or probably by as much as matters."""
    changed = [r for r in pair.results if r.verdict in BETTER | WORSE and _matters(r)]
    for subject in SUBJECTS:
        of_it = [each for each in changed if each.metric.name == subject]
        sure = [each for each in of_it if each.verdict in SURE]
        found = sorted(sure or of_it, key=_rank)
        for better in (False, True):
            like = [each for each in found if (each.verdict in BETTER) is better]
            yield from (_Finding(subject=subject, result=each) for each in like[:1])


def _matters(result: MetricResult) -> bool:
    """Whether it is sure, or too much to be left to chance."""
    small = result.ratio is not None and abs(result.ratio - 1) < MATTERS
    return result.verdict in SURE or not small


def _rank(result: MetricResult) -> int:
    return STATISTICS.index(result.metric.statistic)


def _is_better(found: Sequence[_Finding]) -> bool | None:
    """Whether B is better; None if that depends on what one wants."""
    for subject in (None, *DECIDES):
        said = {each.is_better for each in found if subject in {None, each.subject}}
        if len(said) == 1:
            return said.pop()
    return None


def _contrary(pair: SessionPair, found: Sequence[_Finding]) -> MetricResult | None:
    """A subject that cannot be told, and that measured as the opposite of the others.

    None where a subject that decides is known.
    """
    named = {each.subject for each in found}
    better = _is_better(found)
    if better is None or named & {"goodput", "E2EL"}:
        return None
    for subject in SUBJECTS:
        for each in sorted(pair.results, key=_rank):
            is_open = each.verdict is MetricVerdict.OPEN and not each.client_alone
            if each.metric.name != subject or subject in named or not is_open:
                continue
            if each.a and each.b and _gain(each) * (1 if better else -1) < -MATTERS:
                return each
    return None


def _gain(result: MetricResult) -> float:
    """The change as measured, positive if it is better."""
    change = (result.b or 0.0) / (result.a or 1.0) - 1
    return change if result.metric.better is Better.HIGHER else -change


def how_much(result: MetricResult) -> str:
    """``17× worse``, ``62% better``; without a ratio both values.

    A latency that fell to a tenth is 10× better; to a third, 67% better.
    """
    word = "better" if result.verdict in BETTER else "worse"
    ratio = result.ratio
    if not ratio or math.isinf(ratio):
        before, after = (text.strip() for text in values_text(result))
        return f"{word} ({after} instead of {before})"
    times = max(ratio, 1 / ratio)
    if times >= (MANY_TIMES if ratio > 1 else 5 * MANY_TIMES):
        return f"{times:.2g}× {word}" if times < 100 else f"{times:,.0f}× {word}"
    change = abs(ratio - 1)
    return f"{change:.{0 if change >= 0.02 else 1}%} {word}"


def basis(pair: SessionPair) -> str:
    """How often both were measured, the doubts in short, and what to do about it."""
    runs = "one run each"
    if pair.is_repeated:
        runs = f"{len(pair.a.runs)} runs against {len(pair.b.runs)}"
    texts = [runs, *_doubts(pair)]
    said = ", ".join(texts)
    if at_another_load(pair):
        return f"{said}: send both the same load"
    if not pair.is_repeated:
        return f"{said}: repeat twice"
    open_or_probable = [e for e in pair.results if e.more_runs]
    return f"{said}: repeat by turns" if open_or_probable and texts[1:] else said


def _doubts(pair: SessionPair) -> Iterator[str]:
    """The gravest doubts in a few words, and how many more there are."""
    grave = {each.subject: each.sentence for each in doubts(pair.quality)}
    said = _decisive_unanswered(pair) is not None
    texts = [*_unanswered_texts(pair)] if "requests" in grave and not said else []
    if "host" in grave:
        busy = grave["host"].startswith("Other work")
        texts.append("host busy" if busy else "the hosts differ")
    texts += [words for subject, words in DOUBTS.items() if subject in grave]
    yield from texts[:MOST_DOUBTS]
    if (more := len(texts) - MOST_DOUBTS) > 0:
        yield counted(more, "more doubt")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unanswered:
    """Requests without an answer, where one side has notably more of them."""

    verb: str
    before: float
    """The share of the first side's requests."""
    after: float

    @property
    def is_better(self) -> bool:
        return self.after < self.before

    @property
    def instead(self) -> str:
        """``56% of requests were left unanswered instead of 16%``."""
        after, before = (
            f"{share:.0%}" if share else "none" for share in (self.after, self.before)
        )
        return f"{after} of requests {self.verb} instead of {before}"


def _unanswered(pair: SessionPair) -> Iterator[_Unanswered]:
    """What became of requests without an answer, where the sides differ in it."""
    for what, verb in (("failed", "failed"), ("unended", "were left unanswered")):
        before, after = (
            getattr(side.load, what) / max(side.load.requests, 1)
            for side in (pair.a, pair.b)
        )
        if abs(before - after) > MOST_UNANSWERED:
            yield _Unanswered(verb=verb, before=before, after=after)


def _unanswered_texts(pair: SessionPair) -> Iterator[str]:
    """Which side left more requests unanswered, as none of these is in a latency."""
    for each in _unanswered(pair):
        side = pair.a if each.is_better else pair.b
        share = max(each.before, each.after)
        yield f"{share:.0%} of {side.name}'s requests {each.verb}"


def _decisive_unanswered(pair: SessionPair) -> _Unanswered | None:
    """What decides by itself where both sides were sent the same requests."""
    if at_another_load(pair) or pair.pairing is None:
        return None
    telling = (
        each
        for each in _unanswered(pair)
        if abs(each.before - each.after) >= TELLING_UNANSWERED
    )
    return next(telling, None)


# What the sides are called where there is little room.


def side_texts(pair: SessionPair) -> tuple[str, str]:
    """Both sides by the flags that differ, or by name where none or too many do."""
    flags = _few_flags(pair)
    if not flags:
        return pair.a.name, pair.b.name
    a, b = (
        " and ".join(f"{flag} {values[n]}" for flag, values in flags) for n in (0, 1)
    )
    return a, b


def _few_flags(pair: SessionPair) -> list[tuple[str, tuple[str, str]]]:
    """The flags that differ, if both sides can be called by them: few, and short."""
    flags = engine_settings(pair)
    long = any(len(value) > LONGEST_VALUE for _, values in flags for value in values)
    return [] if long or len(flags) > MOST_FLAGS else flags


def _value(pair: SessionPair, text: str) -> str:
    """The second side of a sentence: without the flag's name, if only one differs."""
    flags = _few_flags(pair)
    return flags[0][1][1] if len(flags) == 1 else text


def short_names(sides: Iterable[ComparedSide], width: int) -> list[str]:
    """Names that differ in so many columns: the names, else ids, else their ends."""
    every = list(sides)
    names = [each.name for each in every]
    ids = [
        label_of([run.row.id for run in each.runs], each.first.row.id) for each in every
    ]
    for texts in (names, ids):
        if max(map(len, texts)) <= width and len(set(texts)) == len(texts):
            return texts
    return [n if len(n) <= width else f"…{n[-max(width - 1, 1) :]}" for n in names]


def heads(pair: SessionPair, width: int) -> tuple[str, str]:
    """Heads of the two columns: the short name, and the value of the one flag."""
    flags = _few_flags(pair)
    values = flags[0][1] if len(flags) == 1 else (UNKNOWN, UNKNOWN)
    texts = []
    for n, each in enumerate(values):
        room = width - len(each) - 2
        short = short_names((pair.a, pair.b), max(room, 3))[n]
        with_value = f"{short}: {each}"
        fits = each != UNKNOWN and len(with_value) <= width
        texts.append(with_value if fits else short_names((pair.a, pair.b), width)[n])
    return texts[0], texts[1]


def long_heads(pair: SessionPair) -> tuple[str, str]:
    """Heads with room for the flags' names: ``s8, max_num_seqs 4``."""
    flags = _few_flags(pair)
    a, b = (
        ", ".join([name, *(f"{flag} {values[n]}" for flag, values in flags)])
        for n, name in enumerate(short_names((pair.a, pair.b), LONG_NAME))
    )
    return a, b
