"""The answer to a what-if in one sentence a setting, the same in all forms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectors.contract.readings import BoundBy
from inferwatch.formatting import (
    about,
    bound_text,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.what_if.outcome import Outcome
from inferwatch.studies.what_if.prediction import Prediction, WhatIf, check_name
from inferwatch.studies.what_if.reach import UNTRIED_ERROR
from inferwatch.studies.what_if.setting import SchedulerSetting

TOLD = (
    ("TTFT p50", "ttft_s", "p50"),
    ("TTFT p99", "ttft_s", "p99"),
    ("time per token", "tpot_s", "p50"),
)
"""The latencies that it names."""
SAME = 0.03
"""A change of less is none."""


Told = tuple[str, str, str]
"""A latency that is named: its name, its key in an Outcome, and the quantile."""


def answers(result: WhatIf, told: Sequence[Told] = TOLD) -> Iterator[str]:
    """One sentence for each setting, without its period, on these latencies."""
    for each in result.predictions:
        what = setting_change(result.setting, each.setting)
        if each.outcome is None:
            yield f"What {what} would do cannot be told: {each.cannot}"
            continue
        parts = [*_latencies(result, each, told), *_rate(result, each)]
        said = [f"With {what}, {', '.join(parts)}"]
        said += [*_of_priorities(result, each), _bound(each.outcome)]
        if each.drawn_on is not None:
            said.append(
                f"it takes larger steps than any seen{_how_sure(each.drawn_on)}"
            )
        yield "; ".join(said)


def _how_sure(error: float) -> str:
    if error >= UNTRIED_ERROR:
        return ", and too few small ones were seen to say what these cost"
    return f", whose cost is extrapolated (±{error:.0%})"


def setting_change(before: SchedulerSetting, now: SchedulerSetting) -> str:
    """What differs, by the flags' names: ``max_num_seqs 8 instead of 4``."""
    parts = []
    for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks"):
        old, new = getattr(before, name), getattr(now, name)
        if old is not None and old != new:
            now_text = f"{new:,} KV blocks" if "kv" in name else f"{name} {new:,}"
            parts.append(f"{now_text} instead of {old:,}")
    if now.rate != before.rate:
        parts.append(f"{now.rate:g} times the rate")
    if now.policy is not before.policy:
        parts.append(f"{now.policy.says} instead of {before.policy.says}")
    return " and ".join(parts) or "the setting as it was"


def between(low: str, high: str) -> str:
    """Both ends, with what they share said once; one of them, if they are alike.

    >>> between("~1.98 s", "~3.75 s"), between("247", "435"), between("7", "7")
    ('~1.98–3.75 s', '247–435', '7')
    """
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    shared = bool(unit) and high.endswith(f" {unit}")
    rest = high.removeprefix("~") if low.startswith("~") else high
    return f"{number if shared else low}–{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A number as it was, and both ends of what it would be."""

    name: str
    before: float
    low: float
    high: float
    texts: Sequence[str]
    """All three as text."""

    @property
    def text(self) -> str:
        before, low, high = self.texts
        to = between(low, high)
        if self.low > self.before * (1 + SAME):
            return f"{self.name} rises from {before} to {to}"
        if self.high < self.before * (1 - SAME):
            return f"{self.name} falls from {before} to {to}"
        if max(abs(end / self.before - 1) for end in (self.low, self.high)) < SAME:
            return f"{self.name} stays at about {before}"
        return f"{self.name} {to} (was {before})"


def _latencies(result: WhatIf, each: Prediction, told: Sequence[Told]) -> Iterator[str]:
    for name, metric, percent in told:
        key = check_name(metric, percent)
        ends = [e.latencies[metric] for e in ends_of(each, key)]
        before = result.measured.latencies[metric]
        yield _latency(name, percent, before, ends, untold=key in result.untold)


def _latency(
    name: str,
    percent: str,
    measured: Quantiles,
    predicted: Sequence[Quantiles],
    *,
    untold: bool,
) -> str:
    before = getattr(measured, percent)
    ends = [getattr(end, percent) for end in predicted]
    if untold or before is None or None in ends:
        return f"{name} cannot be told"
    texts = [text.strip() for text in format_durations([before, *ends])]
    if percent in measured.weak:
        texts = [about(f" {text}").strip() for text in texts]
    low, high = ends
    return _Change(name=name, before=before, low=low, high=high, texts=texts).text


def _of_priorities(result: WhatIf, each: Prediction) -> Iterator[str]:
    """What becomes of the best and of the worst priority, where there are several."""
    of = result.measured.by_priority
    for one in (of[0], of[-1]) if of else ():
        metric, percent = "ttft_s", "p50"
        key = check_name(metric, percent, one.priority)
        there = [end.of_priority(one.priority) for end in ends_of(each, key)]
        ends = [end.latencies[metric] for end in there if end is not None]
        if len(ends) == len(there):
            yield _latency(
                f"TTFT p50 of priority {one.priority}",
                percent,
                one.latencies[metric],
                ends,
                untold=key in result.untold,
            )


def ends_of(each: Prediction, key: str) -> tuple[Outcome, Outcome]:
    """The outcomes between which the number lies; twice the same if it is sure."""
    unsure = key in each.unsure if key else each.drawn_on is not None
    if unsure and each.low is not None and each.high is not None:
        return each.low, each.high
    outcome = each.outcome or Outcome()
    return outcome, outcome


def _rate(result: WhatIf, each: Prediction) -> Iterator[str]:
    before = result.measured.output_tokens_per_s
    ends = [e.output_tokens_per_s for e in ends_of(each, "")]
    known = sorted(end for end in ends if end is not None)
    if not before or len(known) < len(ends):
        return
    texts = [format_rate(value).strip() for value in (before, *known)]
    low, high = known
    change = _Change(name="tokens/s", before=before, low=low, high=high, texts=texts)
    yield (
        change.text.replace("rises", "rise")
        .replace("falls", "fall")
        .replace("stays", "stay")
    )


def _bound(outcome: Outcome) -> str:
    bound = outcome.binds
    if bound is BoundBy.NOTHING:
        return "hardly any request would wait"
    share = format_share(outcome.bound_share[bound]).strip()
    return f"{bound_text(bound)} would keep requests waiting {share} of the time"
