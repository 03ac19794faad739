"""Scores as text, with names and units for each goal."""

from inferwatch.formatting import format_duration, format_figure, format_rate
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.trial import Trial

HEADS = {
    Goal.GOODPUT: "good/s",
    Goal.TOKENS: "tok/s",
    Goal.LATENCY: "TTFT p99",
    Goal.COST: "cost/M",
    Goal.KNEE: "rate/s",
}
"""Heads of table columns."""


def score_text(goal: Goal, score: float | None) -> str:
    """The score in seven columns; the table head gives its unit.

    >>> score_text(Goal.TOKENS, 1180.4), score_text(Goal.LATENCY, 0.212)
    ('  1,180', ' 212 ms')
    >>> score_text(Goal.COST, 0.0421), score_text(Goal.KNEE, None)
    (' 0.0421', '      –')
    """
    if goal is Goal.LATENCY:
        return format_duration(score)
    return format_figure(score) if goal is Goal.COST else format_rate(score)


def score_sentence(goal: Goal, score: float | None) -> str:
    """The score with its unit, without padding.

    >>> score_sentence(Goal.GOODPUT, 8.31), score_sentence(Goal.LATENCY, 0.212)
    ('8.31 good requests/s', 'TTFT p99 212 ms')
    """
    text = score_text(goal, score).strip()
    return {
        Goal.GOODPUT: f"{text} good requests/s",
        Goal.TOKENS: f"{text} tokens/s",
        Goal.LATENCY: f"TTFT p99 {text}",
        Goal.COST: f"{text} a million good tokens",
        Goal.KNEE: f"{text} requests/s held",
    }[goal]


def trial_text(trial: Trial, goal: Goal) -> str:
    """A trial's result in one line: score and TTFT, or why there is none."""
    record, numbers = trial.record, trial.numbers
    if numbers is None:
        return f"{record.outcome}: {record.cause or 'nobody knows why'}"
    facts = [score_sentence(goal, trial.score(goal))]
    if "ttft_s" in numbers.latencies and goal is not Goal.LATENCY:
        p99_s = numbers.latencies["ttft_s"].quantiles.p99
        facts.append(f"TTFT p99 {format_duration(p99_s).strip()}")
    if goal is not Goal.TOKENS:
        facts.append(f"{format_rate(numbers.tokens_per_s).strip()} tokens/s")
    return "; ".join([", ".join(facts), *numbers.doubts[:1]])
