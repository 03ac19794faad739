"""An engine's start in a summary: one object, one line."""

from dataclasses import asdict

from inferwatch.formatting import format_duration
from inferwatch.metrics.steps.startup import StageTime, Startup
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.text import named_line

LEAST_SHARE = 0.05
"""Of the start, below which a stage is not named in the line."""


def startup_row(startup: Startup | None) -> Summary | None:
    """The start as JSON; None where no probe tells."""
    return None if startup is None else asdict(startup)


def startup_lines(summary: Summary) -> list[str]:
    row = summary["startup"]
    if row is None:
        return []
    whole = row["duration_s"]
    stages = [StageTime(**each) for each in row["stages"]]
    named = [each for each in stages if each.duration_s >= LEAST_SHARE * whole]
    words = [stage_text(each) for each in named]
    return [named_line("start-up", ", ".join([format_duration(whole).strip(), *words]))]


def stage_text(stage: StageTime) -> str:
    """A stage with what it took, its rate, and whether it was compiled before."""
    took, *more = stage_words(stage)
    return f"{stage.stage} {took}" + "".join(f" ({each})" for each in more if each)


def stage_words(stage: StageTime) -> tuple[str, str, str]:
    """What it took, its rate, and whether it was cached; empty if not known."""
    rate, cached = stage.bytes_per_s, stage.cached
    return (
        format_duration(stage.duration_s).strip(),
        "" if rate is None else f"{rate / 1e9:.2f} GB/s",
        "" if cached is None else ("cached" if cached else "not cached"),
    )
