"""Wording and number formats of a comparison, shared by screen, text and page."""

from collections import Counter
from collections.abc import Iterable, Sequence

from collectors.contract.readings import Vantage
from inferwatch.formatting import (
    UNKNOWN,
    counted,
    format_about,
    format_change,
    format_count,
    format_duration,
    format_durations,
    format_figure,
    format_share,
)
from inferwatch.metrics.number import Unit
from inferwatch.printing.command import command
from inferwatch.studies.compare.checks.every import engine_differences
from inferwatch.studies.compare.comparison import (
    Comparison,
    ConditionCheck,
    MetricResult,
    SessionPair,
)
from inferwatch.studies.compare.fail_if import Condition, ConditionOutcome
from inferwatch.studies.compare.metrics import COST, ENERGY
from inferwatch.studies.compare.quality import doubts
from inferwatch.studies.compare.reading.configuration import (
    LOAD,
    DifferingSetting,
    differing,
    setting_name,
)
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.runs.matching import NO_PLAN_KNOWN, OTHER_REQUESTS
from inferwatch.studies.compare.statistics.far_tail import FARTHEST
from inferwatch.studies.compare.statistics.significance import Interval
from inferwatch.studies.compare.verdicts import MetricVerdict

SHOWN = (MetricVerdict.WORSE, MetricVerdict.BETTER, MetricVerdict.DIFFERS)
PROBABLE = (
    MetricVerdict.PROBABLY_WORSE,
    MetricVerdict.PROBABLY_BETTER,
    MetricVerdict.PROBABLY_DIFFERS,
)
WORDS = {
    **{each: each.value for each in (*SHOWN, *PROBABLE)},
    MetricVerdict.DIFFERS: "different",
    MetricVerdict.PROBABLY_DIFFERS: "probably different",
}
"""Wording in a sentence that continues with "in"."""
GLYPHS = {
    MetricVerdict.WORSE: "▼",
    MetricVerdict.BETTER: "▲",
    MetricVerdict.DIFFERS: "≠",
    MetricVerdict.PROBABLY_WORSE: "▽",
    MetricVerdict.PROBABLY_BETTER: "△",
    MetricVerdict.PROBABLY_DIFFERS: "≈",
    MetricVerdict.SAME: "=",
    MetricVerdict.OPEN: "?",
}
"""Shown beside the word and the colour, in the order in which rows are shown."""
MOST_NAMED = 3
NONE_AT_ALL = 0.001
"""Below this p-value, which of two is smaller means nothing."""
ENGINES = "engines"
"""How many there were, which no flag says."""
MORE = (
    "+N req: about that many more requests in each session, if they vary as these did; "
    "few tell what seems far apart, many that nothing changed, so p50 may take more "
    "than p99. ≥: to judge it at all."
)
A_PEAK = "one observation, so not judged"


def values_text(result: MetricResult) -> tuple[str, str]:
    """A's and B's value in one unit, at most nine columns each."""
    before, after = _texts((result.a, result.b), result.metric.unit)
    return before, after


def _texts(values: Iterable[float | None], unit: Unit) -> tuple[str, ...]:
    if unit is Unit.SECONDS:
        return format_durations(values)
    show = format_share if unit is Unit.SHARE else format_figure
    return tuple(map(show, values))


def change_text(ratio: float | None) -> str:
    """A ratio as a change, at most six columns: ``+38%``, ``×12.5``."""
    return format_change(ratio)


def span_text(span: Interval | None) -> str:
    """An interval of ratios: ``+22% … +57%``."""
    if span is None:
        return UNKNOWN
    return _one_sided(span) or f"{change_text(span[0])} … {change_text(span[1])}"


def short_span(span: Interval | None) -> str:
    """An interval of ratios for use in a sentence: ``+22 … +57%``."""
    if span is None:
        return UNKNOWN
    if text := _one_sided(span):
        return text
    low, high = map(change_text, span)
    return f"{low.removesuffix('%') if high.endswith('%') else low} … {high}"


def _one_sided(span: Interval) -> str | None:
    low, high = span
    if high >= FARTHEST:
        return f"at least {change_text(low)}"
    return f"at most {change_text(high)}" if low <= 0 else None


def verdict_text(result: MetricResult) -> str:
    """The verdict, and how much more data would settle it, such as ``+400 req``."""
    if result.client_alone:
        return f"{result.verdict}: client"
    if result.verdict is MetricVerdict.OPEN and result.more_runs:
        return f"{result.verdict} +{counted(result.more_runs, 'run')}"
    if result.verdict is MetricVerdict.OPEN and result.more_requests:
        more = format_count(result.more_requests).strip()
        least = "" if result.p_value is not None else "≥ "
        return f"{result.verdict} {least}+{more} req"
    return str(result.verdict)


def more_text(result: MetricResult, pair: SessionPair) -> str | None:
    """What more each side needs: ``+400 requests (27 s)``, ``+2 runs``, or None."""
    if result.more_runs:
        return f"+{counted(result.more_runs, 'run')}"
    if not result.more_requests:
        return None
    least = "" if result.p_value is not None else "at least "
    text = f"{least}+{counted(result.more_requests, 'request')}"
    rates = [each.load.per_s for each in (pair.a, pair.b)]
    slower = min((each for each in rates if each), default=None)
    if slower is None:
        return text
    return f"{text} ({format_about(result.more_requests / slower)})"


def would_text(result: MetricResult, pair: SessionPair, of: str = "") -> str:
    """``+400 requests (27 s) would tell``; of what judging takes, only how many."""
    if (more := more_text(result, pair)) is None:
        return ""
    tells = "would tell" if result.p_value is not None else ""
    return " ".join(filter(None, (more, of, tells)))


def nearest_first(results: Iterable[MetricResult]) -> list[MetricResult]:
    """Judged results that more data would tell, headline metrics first.

    Of those that could not be judged, the number is only what judging takes.
    """
    told = (e for e in results if e.p_value is not None)
    return sorted(
        (each for each in told if each.more_runs or each.more_requests),
        key=lambda e: (-e.metric.weight, e.more_runs or 0, e.more_requests or 0),
    )


def other_reasons(results: Iterable[MetricResult]) -> list[tuple[str, int]]:
    """Why more data may not tell, with the number of rows, the most common first."""
    told = nearest_first(results := [*results])
    whys = Counter(each.why for each in results if each not in told)
    return [(why, many) for why, many in whys.most_common() if why]


def title(result: MetricResult) -> str:
    """The row's title, such as ``TTFT p99`` or ``tokens/s``."""
    if result.metric.statistic is None:
        currency = f" {result.currency}" if result.currency else ""
        return f"{result.metric.name}{currency}"
    return f"{result.metric.name} {result.metric.statistic}"


def at_another_load(pair: SessionPair) -> bool:
    """Whether the sides got different loads, so that no number is better by itself."""
    return any(check.subject == LOAD.strip() for check in doubts(pair.quality))


def whose(result: MetricResult) -> str:
    """The title with its vantage, such as ``client TTFT p99``; none for the server."""
    client = result.metric.vantage is Vantage.CLIENT
    return f"{'client ' if client else ''}{title(result)}"


def meaning(verdict: MetricVerdict, matters: float) -> str:
    if verdict in PROBABLE:
        return "by its own interval alone, as 1 row in 20 is by chance"
    if verdict in SHOWN:
        return "holds over all rows together"
    if verdict is MetricVerdict.SAME:
        return f"a change of {matters:.0%} would have been"
    return "too few requests for how much they vary"


def in_order(pair: SessionPair) -> dict[MetricVerdict, list[MetricResult]]:
    """Results by verdict, changes first; within a verdict the surest first."""
    found = {verdict: pair.of(verdict) for verdict in GLYPHS}
    for verdict in (*SHOWN, *PROBABLE):
        found[verdict].sort(key=_surest)
    return {verdict: results for verdict, results in found.items() if results}


def _surest(result: MetricResult) -> tuple[float, float, float]:
    """Sort key: the adjusted p-value, the metric's weight, its own p-value."""
    known = (result.adjusted_p, result.p_value)
    shared, own = (1.0 if each is None else each for each in known)
    own = max(own, NONE_AT_ALL)
    return max(shared, NONE_AT_ALL), -result.metric.weight, own


def pairing_sentence(pair: SessionPair) -> str:
    """Whether the sides are paired; if not, why, and how to pair them."""
    if pair.is_repeated:
        return pair.about_runs
    if pair.pairing is not None:
        return (
            f"paired: {pair.pairing.requests:,} of "
            f"{counted(pair.pairing.of, 'request')}, sent to both at the same times "
            "and answered by both"
        )
    why = pair.unpaired_because or OTHER_REQUESTS
    repeating = why == OTHER_REQUESTS or why.startswith(NO_PLAN_KNOWN)
    again = _again(pair.a.first) if repeating else ""
    return f"not paired ({why_unpaired(pair)}){again}"


def why_unpaired(pair: SessionPair) -> str | None:
    """Why sides are not paired, from load settings; None if paired or repeated."""
    if pair.is_repeated or pair.pairing is not None:
        return None
    if pair.unpaired_because not in {None, OTHER_REQUESTS}:
        return pair.unpaired_because
    sides = (pair.a, pair.b)
    found = differing([each.first.configuration for each in sides])
    reasons = [
        f"{each.name.removeprefix(LOAD)} "
        f"{' and '.join(value or UNKNOWN for value in each.values)}"
        for each in found
        if each.name.startswith(LOAD)
    ]
    if not reasons:
        return OTHER_REQUESTS
    return f"their loads differ: {'; '.join(reasons[:MOST_NAMED])}"


def _again(run: SessionNumbers) -> str:
    """How to repeat the load; empty for imported sessions, which may lack the data."""
    if run.row.imported_from is not None:
        return ""
    again = f"`{command('load', '--like', run.row.id, database=run.path)}`"
    return f"; {again} sends the same requests, and pairs tell more"


def engine_settings(pair: SessionPair) -> list[tuple[str, tuple[str, str]]]:
    """The engine's settings that differ, by plain name, with both sides' values.

    Those that are known of one side alone say nothing.
    """
    found = []
    for each in engine_differences(pair.a, pair.b):
        a, b = _by_side((pair.a, pair.b), each)
        if UNKNOWN not in {a, b} and each.name != ENGINES:
            found.append((setting_name(each.name), (a, b)))
    return found


def startup_rows(comparison: Comparison) -> list[list[str]]:
    """Each stage of the engines' starts, with what it took in each session."""
    sessions = comparison.sessions
    stages = dict.fromkeys(stage for each in sessions for stage in each.startup_s)
    return [
        [stage, *format_durations([each.startup_s.get(stage) for each in sessions])]
        for stage in stages
    ]


def by_side(comparison: Comparison, setting: DifferingSetting) -> list[str]:
    """The setting's value on each side; all values if runs of a side differ."""
    return _by_side(comparison.sides, setting)


def _by_side(sides: Sequence[ComparedSide], setting: DifferingSetting) -> list[str]:
    left = iter(setting.values)
    of_sides = [[next(left) for _ in side.runs] for side in sides]
    return [
        " or ".join(dict.fromkeys(UNKNOWN if v is None else v for v in of_side))
        for of_side in of_sides
    ]


def too_small(result: MetricResult, matters: float) -> str | None:
    """Why a metric counts as unchanged though its interval is wide or excludes 1."""
    seconds, ratios = result.difference_span, result.ratio_span
    if result.verdict is not MetricVerdict.SAME or not seconds or not ratios:
        return None
    wide = max(abs(end - 1) for end in ratios) > matters
    if not wide and ratios[0] <= 1 <= ratios[1]:
        return None
    if max(map(abs, seconds)) <= result.metric.negligible:
        least = format_duration(result.metric.negligible).strip()
        return f"less than {least} apart, which nobody waits for"
    return None if wide else "too small a change to count"


def window_text(numbers: SessionNumbers) -> str:
    span = numbers.span
    row_id = numbers.row.id
    name = numbers.name if numbers.name == row_id else f"{numbers.name} ({row_id})"
    return (
        f"{name}: {span.from_s:.1f} to {span.to_s:.1f} s "
        f"after its load began, warm-up cut: {span.cut}, "
        f"{counted(numbers.load.requests, 'request')}"
    )


def check_text(check: ConditionCheck) -> str:
    open_ends = "fails" if check.open_fails else "passes"
    text = {
        ConditionOutcome.FAILED: "FAILED",
        ConditionOutcome.HELD: "held",
        ConditionOutcome.OPEN: f"cannot tell, so it {open_ends}",
    }[check.outcome]
    if check.span is None:
        why = f": {check.why}" if check.why else ""
        return f"--fail-if {check.condition.text!r}: {text}{why}{_status(check)}"
    spread = _interval_text(check.span, check.condition)
    return f"--fail-if {check.condition.text!r}: {text} ({spread}){_status(check)}"


def _interval_text(span: Interval, condition: Condition) -> str:
    """The interval as ratios or in the metric's unit; its upper end may be open."""
    if condition.relative:
        return span_text(span)
    known = [each for each in span if each < FARTHEST]
    sizes = _texts(map(abs, known), condition.metric.unit)
    ends = [
        f"{'-' if value < 0 else '+'}{size.strip()}"
        for value, size in zip(known, sizes, strict=True)
    ]
    return " … ".join(ends) if len(ends) > 1 else f"at least {ends[0]}"


def _status(check: ConditionCheck) -> str:
    if check.outcome is not ConditionOutcome.OPEN:
        return ""
    if check.open_fails:
        return "; exit status 4, unless another one failed"
    return "; with --inconclusive-fails it would end with exit status 4"


def method_text(comparison: Comparison) -> str:
    rules = comparison.rules
    repeated = {pair.is_repeated for pair in comparison.pairs}
    ways = [
        *(["by Welch's t over what each run measured"] if True in repeated else []),
        *([_drawn(rules.draws, rules.seed)] if False in repeated else []),
    ]
    text = f"95% intervals of each metric by itself, {' and '.join(ways)}."
    if comparison.judged:
        text += (
            " Verdicts share one 5% chance of a false alarm over "
            f"{counted(comparison.judged, 'row')} (Westfall and Young)."
        )
    return f"{text} Differences below {rules.matters:.0%} may go unnoticed."


def _drawn(draws: int, seed: int) -> str:
    return f"from {draws:,} resamplings of blocks of time (seed {seed})"


def not_compared(comparison: Comparison) -> str | None:
    """What is missing of the rows, why, and how to have it; None if nothing is."""
    keys = {each.metric.key for pair in comparison.pairs for each in pair.results}
    missing = []
    if COST not in keys:
        missing.append(f"cost ({_why_no_cost(comparison)})")
    if ENERGY not in keys:
        missing.append("GPU energy (none was measured: no NVML, no DCGM)")
    missing += [
        f"{run.left_out} in {run.name} (too many to follow: choose a shorter part "
        "with --a-from, --a-to, --b-from, --b-to)"
        for run in comparison.sessions
        if run.left_out is not None
    ]
    return f"Not compared: {', '.join(missing)}." if missing else None


def _why_no_cost(comparison: Comparison) -> str:
    currencies = [run.currency for run in comparison.sessions]
    if not any(currencies):
        return "no prices: --gpu-hour or --kwh"
    if not all(currencies):
        return "prices are recorded of some alone: --gpu-hour or --kwh"
    return "prices are recorded, but not what they are of"


def peak_text(pair: SessionPair) -> str | None:
    both = (pair.a, pair.b)
    if any(each.kv_peak is None for each in both):
        return None
    before, after = (
        f"{each.name} {format_share(each.kv_peak).strip()}" for each in both
    )
    return f"KV peak: {before}, {after} of all blocks ({A_PEAK})."
