"""The conclusion of a comparison, one sentence for all forms: which side to keep.

It says no more than the verdicts on the metrics: what is probable is called so; what
goes the other way but cannot be told keeps it from choosing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from inferwatch.formatting import counted
from inferwatch.metrics.number import Better
from inferwatch.studies.compare.changed_phase import phase_sentence
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.quality import doubts
from inferwatch.studies.compare.report import (
    MOST_NAMED,
    PROBABLE,
    SHOWN,
    WORDS,
    at_another_load,
    change_text,
    more_text,
    nearest_first,
    short_span,
    title,
    values_text,
    whose,
)
from inferwatch.studies.compare.side_names import second_text, side_texts
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
UNTOLD = {MetricVerdict.OPEN}
MOST_UNANSWERED = 0.05
TELLING_UNANSWERED = 0.2
"""From this difference of shares on, requests without an answer decide: latencies are
of answered ones alone, the quickest.
"""
MANY_TIMES = 2.0
"""From this ratio on a change is given as a multiple."""
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
    phase = phase_sentence(pair) if found else None
    answers = pair.answers.conclusion if pair.answers is not None else None
    texts = (_choice(pair, found, a, b), phase, answers, basis(pair))
    return "; ".join(filter(None, texts))


def _choice(pair: SessionPair, found: Sequence[_Finding], a: str, b: str) -> str:
    unanswered = _decisive_unanswered(pair)
    if not found and unanswered is None:
        return _nothing_found(pair, a, b)
    other = second_text(pair, b)
    what = f"with {other}, {', '.join(_texts(found, unanswered))}"
    if at_another_load(pair):
        return f"No choice between {a} and {other}, as their loads differ: {what}"
    against = _against(pair, found, unanswered)
    if against is not None:
        return f"No choice yet between {a} and {other}: {what}{against}"
    better = _is_better(found) if unanswered is None else unanswered.is_better
    if better is None:
        return f"{a} or {other} is a trade: {what}"
    for_it = [each for each in found if each.is_better is better]
    what = f"with {other}, {', '.join(_texts(for_it, unanswered))}"
    if though := ", ".join(_texts([e for e in found if e not in for_it], None)):
        what += f", though {though}"
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
    # What happened on neither side, such as preemptions, says little of how alike
    # they are.
    same = [each for each in pair.of(MetricVerdict.SAME) if each.a or each.b]
    still_open = pair.of(MetricVerdict.OPEN)
    both = f"{a} and {second_text(pair, b)}"
    loads = ", though their loads differ" if at_another_load(pair) else ""
    if len(same) > len(still_open):
        rows = counted(len(same), "row")
        of = f"in {rows} of {len(pair.results)}{loads}"
        return f"No difference shown between {both}, {of}"
    nearest, would = next(iter(nearest_first(still_open)), None), ""
    if nearest is not None:
        would = f": about {more_text(nearest, pair)} a side would tell {title(nearest)}"
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


def runs_text(pair: SessionPair) -> str:
    if pair.is_repeated:
        return f"{len(pair.a.runs)} runs against {len(pair.b.runs)}"
    return "one run each"


def basis(pair: SessionPair) -> str:
    """How often both were measured, the doubts in short, and what to do about it."""
    runs = runs_text(pair)
    if _decisive_unanswered(pair) and {e.verdict for e in pair.results} == UNTOLD:
        runs += f" {'are' if pair.is_repeated else 'is'} too few to judge any row"
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


# How many rows changed which way.


def sentence(pair: SessionPair) -> str:
    """How many rows changed which way, and which of them carry the conclusion."""
    names = f"{pair.b.name} against {pair.a.name}"
    if pair.void:
        return f"{names} cannot be compared: {pair.void.removesuffix('.')}"
    load = "; all of it at another load" if at_another_load(pair) else ""
    return f"{names}: {'; '.join(_verdict_texts(pair))}{load}"


def _verdict_texts(pair: SessionPair) -> Iterator[str]:
    found = [*_findings(pair)]
    rows = {each: pair.of(each) for each in MetricVerdict}
    changed = [each for each in (*SHOWN, *PROBABLE) if rows[each]]
    if changed and changed[0] in PROBABLE:
        yield "nothing surely worse or better"
    for verdict in changed:
        yield f"{WORDS[verdict]} in {_named(rows[verdict], found)}"
    yield from _nothing({each: len(of_it) for each, of_it in rows.items()})
    for verdict, words in (
        (MetricVerdict.SAME, "no difference shown"),
        (MetricVerdict.OPEN, "cannot tell"),
    ):
        if many := len(rows[verdict]):
            every = "any of " if many == len(pair.results) else ""
            yield f"{words} in {every}{counted(many, 'row')}"
    if grounds := " and ".join(_grounds(pair, found)):
        yield f"the conclusion rests on {grounds}"


def _grounds(pair: SessionPair, found: Sequence[_Finding]) -> Iterator[str]:
    """What the conclusion rests on, where it chooses or weighs."""
    unanswered = _decisive_unanswered(pair)
    if at_another_load(pair) or _against(pair, found, unanswered) is not None:
        return
    if found:
        yield "the rows named"
    if unanswered is not None:
        alone = "" if found else "nothing but "
        yield f"{alone}the requests that {unanswered.verb}"


def _nothing(counts: Mapping[MetricVerdict, int]) -> Iterator[str]:
    """Say "nothing better" or "nothing worse", if there is only the opposite."""
    worse = counts[MetricVerdict.WORSE], counts[MetricVerdict.PROBABLY_WORSE]
    better = counts[MetricVerdict.BETTER], counts[MetricVerdict.PROBABLY_BETTER]
    if worse[0] and not any(better):
        yield "nothing better"
    if better[0] and not any(worse):
        yield "nothing worse"


def _named(results: Sequence[MetricResult], found: Sequence[_Finding]) -> str:
    """The rows that the conclusion names; where it names none, the largest changes."""
    named = [each.result for each in found if each.result in results]
    if not found:
        largest: dict[str, MetricResult] = {}
        for each in sorted(results, key=_headline_first):
            largest.setdefault(each.metric.name, each)
        named = [*largest.values()][:MOST_NAMED]
    texts = [f"{whose(each)} {_change(each)}" for each in named]
    if rest := len(results) - len(named):
        texts.append(f"{counted(rest, 'more row' if named else 'row')}")
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _change(result: MetricResult) -> str:
    change, spread = change_text(result.ratio), short_span(result.ratio_span)
    return change if spread == f"{change} … {change}" else f"{change} ({spread})"


def _headline_first(result: MetricResult) -> tuple[float, float]:
    """Sort key: headline metrics first, then the largest change."""
    ratio = result.ratio
    change = abs(math.log(ratio)) if ratio else math.inf
    return -result.metric.weight, -change
