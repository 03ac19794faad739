"""One setting of a tune: its state and why, in short or in full."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import counted, format_bytes, format_duration, format_rate
from inferwatch.studies.tune.goal import Goal
from inferwatch.studies.tune.progress import TuneProgress
from inferwatch.studies.tune.result.scores import score_sentence, score_text
from inferwatch.studies.tune.result.tune_result import PointResult
from inferwatch.studies.tune.trial import Trial, TrialNumbers
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled
from inferwatch.ui.tune.rows import GLYPHS, TuneRow

Span = tuple[float, float]


class TuneDetail(Panel):
    """The setting under the cursor; enter shows it in full."""

    DEFAULT_CSS = """
    TuneDetail { height: 5; background: $surface; }
    """

    _row: TuneRow | None = None
    _progress: TuneProgress | None = None

    def show(self, row: TuneRow | None, progress: TuneProgress) -> None:
        self._row, self._progress = row, progress
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        row, progress = self._row, self._progress
        if row is None or progress is None:
            return ()
        title = (TextRun(row.point.text or "as started", "strong"),)
        right = (TextRun("present", "accent"),) if row.is_present else ()
        lines: list[Line] = [ruled(title, right, width)]
        ink = GLYPHS[row.state][1]
        room = max(height - 3, 1)
        said = wrap(row.said, max(width - 3, 10), max_lines=room, placeholder=" …")
        lines += [(TextRun("  "), TextRun(text, ink)) for text in said]
        parts = " · ".join(facts(row, progress.goal))
        folded = wrap(parts, max(width - 3, 10), max_lines=2, placeholder=" …")
        lines += [(TextRun("  "), TextRun(text)) for text in folded]
        lines += [
            fit((TextRun("  ! ", "warn"), TextRun(each, "warn")), width)
            for each in row.standing.doubts
        ]
        return lines[:height]


def facts(row: TuneRow, goal: Goal) -> Iterator[str]:
    standing, result = row.standing, row.result
    if standing.score is None:
        yield "no number yet" if not row.trials else counted(len(row.trials), "trial")
        return
    yield score_sentence(goal, standing.score) + _spanned(goal, standing.span)
    if standing.against_present and not row.is_present:
        low, high = (100 * (each - 1) for each in standing.against_present)
        yield f"{low:+.0f}% to {high:+.0f}% against the present"
    if result is not None:
        yield from _numbers(result, goal)
    yield counted(standing.trials, "trial")


def _numbers(result: PointResult, goal: Goal) -> Iterator[str]:
    if result.ttft_p99_s is not None and goal is not Goal.LATENCY:
        yield f"TTFT p99 {format_duration(result.ttft_p99_s).strip()}"
    if result.tpot_p99_s is not None:
        yield f"TPOT p99 {format_duration(result.tpot_p99_s).strip()}"
    if result.tokens_per_s is not None and goal is not Goal.TOKENS:
        yield f"{format_rate(result.tokens_per_s).strip()} tokens/s"
    if result.good_share is not None:
        yield f"{result.good_share:.1%} good"
    if result.on_frontier:
        yield "on the frontier"


def _spanned(goal: Goal, span: Span | None) -> str:
    if span is None:
        return ""
    low, high = (score_text(goal, end).strip() for end in span)
    return f" ({low}–{high})"


def setting_lines(row: TuneRow, progress: TuneProgress) -> Iterator[str]:
    yield f"--{' --'.join(each.lstrip('-') for each in row.point.command_flags)}"
    yield row.said
    yield from facts(row, progress.goal)
    for doubt in row.standing.doubts:
        yield f"! {doubt}"
    for trial in row.trials:
        yield ""
        yield from trial_lines(trial, progress.goal)
    if not row.trials:
        yield ""
        yield "It was not measured yet."


def trial_lines(trial: Trial, goal: Goal) -> Iterator[str]:
    """Yield a trial: when, in which session, and its result."""
    record = trial.record
    how = "turned while the engine ran" if record.live else "as started"
    yield (
        f"trial {record.number}, repeat {record.repeat + 1}: {record.outcome}, "
        f"{format_duration(record.took_s).strip()}, engine {record.life}, {how}"
    )
    if record.session:
        yield f"  session {record.session}: inferwatch replay {record.session}"
    if record.cause:
        yield f"  {record.cause}"
    if trial.numbers is not None:
        yield f"  {', '.join(_trial_numbers(trial, trial.numbers, goal))}"
        yield from (f"  ! {doubt}" for doubt in trial.numbers.doubts)


def _trial_numbers(trial: Trial, numbers: TrialNumbers, goal: Goal) -> Iterator[str]:
    yield score_sentence(goal, trial.score(goal))
    yield counted(numbers.requests, "request")
    if numbers.failed:
        yield f"{numbers.failed:,} failed"
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        if name in numbers.latencies:
            p99 = numbers.latencies[name].quantiles.p99
            yield f"{label} p99 {format_duration(p99).strip()}"
    if numbers.kv_peak_usage is not None:
        yield f"KV peak {numbers.kv_peak_usage:.0%}"
    if numbers.preemptions:
        yield counted(numbers.preemptions, "preemption")
    if numbers.memory_bytes is not None:
        yield f"{format_bytes(numbers.memory_bytes).strip()} memory"
    if numbers.bound_share:
        most = max(numbers.bound_share, key=lambda each: numbers.bound_share[each])
        yield f"bound by {most} {numbers.bound_share[most]:.0%}"
