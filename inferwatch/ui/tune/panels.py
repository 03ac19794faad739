"""Panels of a tune besides its table: head, plot and messages."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from collectors.contract.readings import BoundBy
from inferwatch.formatting import (
    bound_text,
    counted,
    format_about,
    format_bytes,
    format_duration,
    format_rate,
)
from inferwatch.printing.canvas import PlotStyle
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.result.plot import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    tune_plot,
)
from inferwatch.studies.tune.result.table import PRESENT
from inferwatch.studies.tune.result.tune_result import PointResult
from inferwatch.studies.tune.result.verdict import (
    score_sentence,
    score_text,
    trial_text,
    values_text,
)
from inferwatch.studies.tune.trial import Trial, TrialNumbers
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells_of,
    fit,
    join,
    join_whole,
    ruled,
    spread,
    width_of,
)
from inferwatch.ui.tune.rows import GLYPHS, RowState, TuneRow

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
        rows = wrap(row.said, max(width - 3, 10), max_lines=room, placeholder=" …")
        lines += [(TextRun("  "), TextRun(text, ink)) for text in rows]
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
    """Yield lines on a trial: how it was run, in which session, and its result."""
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
        bound, share = BoundBy(most), numbers.bound_share[most]
        by = "" if bound is BoundBy.NOTHING else "bound by "
        yield f"{by}{bound_text(bound)} {share:.0%}"


class TuneLegend(LinePanel):
    """What the signs of the table mean, of those that it has."""

    _rows: Sequence[TuneRow] = ()

    def show(self, rows: Sequence[TuneRow]) -> None:
        self._rows = rows
        self.redraw()

    def line(self, width: int) -> Line:
        states = {row.state for row in self._rows}
        signs = {
            GLYPHS[state]: state.value
            for state in RowState
            if state in states and GLYPHS[state][0].strip()
        }
        parts = [
            (TextRun(glyph, ink), TextRun(f" {means}", "muted"))
            for (glyph, ink), means in signs.items()
        ]
        if any(row.is_now for row in self._rows):
            parts.append((TextRun("▶", "accent"), TextRun(" measured now", "muted")))
        if any(row.is_present for row in self._rows):
            parts.append((TextRun(PRESENT, "accent"), TextRun(" present", "muted")))
        if any(row.standing.span for row in self._rows):
            interval = TextRun(" 95% interval", "muted")
            parts.append((TextRun("━●━", "accent"), interval))
        return fit((TextRun(" "), *join_whole(parts, width - 2)), width)


SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BAR_CELLS = 20
CLOCK_CELLS = 8
"""Cells of the seconds behind the bar."""


class TuneHead(Panel):
    """Goal and time; stage and progress; why this setting is measured."""

    DEFAULT_CSS = """
    TuneHead { height: 4; }
    """

    _progress: TuneProgress | None = None
    _name = ""
    _ending = False

    def show(self, progress: TuneProgress, name: str, *, ending: bool) -> None:
        """Show the progress of a tune; ``name`` is the model or server."""
        self._progress, self._name, self._ending = progress, name, ending
        if self.size.width:
            needed = 1 + len(self._body(self.size.width))
            height = self.styles.height
            if height is None or height.value != needed:
                self.styles.height = needed
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        if self._progress is None:
            return ()
        return [self._title(self._progress, width), *self._body(width)][:height]

    def _title(self, now: TuneProgress, width: int) -> Line:
        left = (
            TextRun(" Tune ", "chip"),
            TextRun(f" {now.goal} ", "strong"),
            TextRun(f"{self._name}  "),
            TextRun(now.slo or "", "muted"),
        )
        facts = [(TextRun(age_text(now.elapsed_s)),)]
        if now.stage is not TuneStage.DONE and now.left_s is not None:
            facts.append((TextRun(f"about {format_about(now.left_s)} left", "accent"),))
        if now.budget_s is not None:
            facts.append((TextRun(f"of {format_about(now.budget_s)}", "muted"),))
        return spread(left, (*join(facts), TextRun(" ")), width)

    def _body(self, width: int) -> Sequence[Line]:
        now = self._progress
        if now is None:
            return ()
        if now.stage is TuneStage.DONE:
            return list(_ended(now, width))
        return [self._stage(now, width), *_why(now, width)]

    def _stage(self, now: TuneProgress, width: int) -> Line:
        spin = SPINNER[int(now.elapsed_s * 2) % len(SPINNER)]
        stage = "ending: the engine stops" if self._ending else str(now.stage)
        left = [TextRun(f" {spin} ", "accent"), TextRun(f"{stage} ", "accent")]
        if now.now is not None:
            point, repeat = now.now.point, f"  repeat {now.now.repeat + 1}"
            if now.rate_per_s is not None:
                repeat += f"  at {format_rate(now.rate_per_s).strip()} requests/s"
            room = width - width_of(left) - len(repeat) - BAR_CELLS - CLOCK_CELLS
            text = point.text if cells_of(point.text) <= room else values_text(point)
            left += [TextRun(text, "strong"), TextRun(repeat, "muted")]
        right: Line = (TextRun(f"{now.stage_s:.0f} s ", "muted"),)
        if now.stage_share is not None:
            filled = round(min(now.stage_share, 1.0) * BAR_CELLS)
            right = (
                TextRun("━" * filled, "accent"),
                TextRun("╌" * (BAR_CELLS - filled), "faint"),
                TextRun(" "),
                *right,
            )
        return spread(left, right, width)


def _why(now: TuneProgress, width: int) -> Iterator[Line]:
    """Yield lines on why the present setting is measured, and on the best so far."""
    why = now.now.why if now.now else "what to measure next is being chosen"
    yield fit((TextRun("   "), TextRun(why, "muted")), width)
    yield from _bulleted(_verdict(now), width, 2, _star(now))


def _verdict(now: TuneProgress) -> str:
    """Return the verdict of the tune; while it is open, the best score so far."""
    result = now.result
    over = now.stage is TuneStage.DONE
    if result is None or not (result.is_measured or over):
        return "nothing is measured yet"
    if result.best is None or result.verdict:
        return result.verdict
    return f"{result.best.point.text}: {score_sentence(now.goal, result.best.score)}"


def _star(now: TuneProgress) -> str:
    return "★" if now.result is not None and now.result.best is not None else " "


def _bulleted(text: str, width: int, most: int, mark: str) -> Iterator[Line]:
    room = max(width - 4, 10)
    for place, line in enumerate(wrap(text, room, max_lines=most, placeholder=" …")):
        yield (TextRun(f" {' ' if place else mark} ", "good"), TextRun(line, "strong"))


def _ended(now: TuneProgress, width: int) -> Iterator[Line]:
    yield from _bulleted(_verdict(now), width, 3, _star(now))
    result = now.result
    if result is None:
        return
    for text in filter(None, (result.binds, *result.costs)):
        yield from _bulleted(text, width, 2, "·")
    if result.command:
        mark = "·" if result.command.startswith("-") else "$"
        yield from _bulleted(result.command, width, 3, mark)


INKS = {
    PlotStyle.NONE: "",
    PlotStyle.AXIS: "rule",
    PlotStyle.LABEL: "muted",
    PlotStyle.STAIRS: "faint",
    PlotStyle.INTERVAL: "accent",
    PlotStyle.POINT: "",
    PlotStyle.FRONTIER: "strong",
    PlotStyle.BEST: "good",
    PlotStyle.PRESENT: "warn",
}


class TunePlot(Panel):
    """Throughput against p99, with the frontier and intervals."""

    DEFAULT_CSS = """
    TunePlot { height: 1fr; min-height: 9; }
    """

    _progress: TuneProgress | None = None

    def show(self, progress: TuneProgress) -> None:
        self._progress = progress
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        heading = ruled((TextRun("throughput and p99", "muted"),), (), width)
        result = self._progress.result if self._progress else None
        if result is None or width < LEAST_WIDTH or height <= LEAST_HEIGHT:
            return [heading]
        rows = tune_plot(result, width, height - 2)  # one for points behind others
        if not rows:
            return [heading, (TextRun("  it takes two measured settings", "faint"),)]
        lines = [
            fit([TextRun(text, INKS[style]) for text, style in row], width)
            for row in rows
        ]
        return [heading, *lines][:height]


class TuneMessages(Panel):
    """The latest messages and trials, and the drift of the machine."""

    DEFAULT_CSS = """
    TuneMessages { height: 4; }
    """

    _sentences: Sequence[str] = ()
    _trials: Sequence[str] = ()
    _drift: float | None = None

    def show(self, progress: TuneProgress, drift: float | None) -> None:
        self._sentences, self._drift = progress.said[-MOST_SENTENCES:], drift
        self._trials = [
            f"#{each.record.number} {values_text(each.point)}: "
            f"{trial_text(each, progress.goal)}"
            for each in progress.trials[-MOST_TRIALS:]
            if each.numbers is not None  # otherwise a message says why
        ]
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the newest messages and, in the rows left above, the newest trials."""
        heading = ruled((TextRun("what happened", "muted"),), self._right(), width)
        room = max(height - 1, 0)
        lines: list[Line] = []
        for text in reversed((*self._trials, *self._sentences)):
            folded = wrap(text, max(width - 3, 10), max_lines=3, placeholder=" …")
            if len(lines) + len(folded) > room and lines:
                break
            lines = [*_marked(folded), *lines]
        return [heading, *lines[:room]]

    def _right(self) -> Line:
        if self._drift is None:
            return ()
        ink = "warn" if self._drift >= DRIFT_WORTH else "muted"
        return (TextRun(f"the machine drifts by {self._drift:.1%}", ink),)


MOST_SENTENCES, MOST_TRIALS = 2, 20
DRIFT_WORTH = 0.05
"""Drift from which it exceeds most differences between settings."""


def _marked(folded: Sequence[str]) -> Iterator[Line]:
    for place, text in enumerate(folded):
        mark = " · " if not place else "   "
        yield (TextRun(mark, "faint"), TextRun(text))
