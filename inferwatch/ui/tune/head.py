"""What a tune measures now and why, how far it is, and how long it will take."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import format_about
from inferwatch.tune.progress import TuneProgress, TuneStage
from inferwatch.tune.scores import score_sentence
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    age_text,
    fit,
    join,
    spread,
)

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
BAR_CELLS = 20
MOST_LINES = 5


class TuneHead(Panel):
    """The goal and the clock; the stage with its bar; why this is measured now."""

    DEFAULT_CSS = """
    TuneHead { height: 4; }
    """

    _progress: TuneProgress | None = None
    _ending = False
    _looks = 0

    def show(self, progress: TuneProgress, *, ending: bool) -> None:
        """Take it as of now."""
        self._progress, self._ending = progress, ending
        self._looks += 1
        if self.size.width:
            needed = 1 + len(self._body(self.size.width))
            height = self.styles.height
            if height is None or height.value != needed:
                self.styles.height = needed
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        if self._progress is None:
            return ()
        return [self._title(self._progress, width), *self._body(width)][:height]

    def _title(self, now: TuneProgress, width: int) -> Line:
        left = (
            TextRun(" Tune ", "chip"),
            TextRun(f" {now.model} ", "strong"),
            TextRun(f"{now.goal}", "muted"),
            TextRun(f" {now.slo}" if now.slo else "", "muted"),
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
        spin = SPINNER[self._looks % len(SPINNER)]
        said = "ending: the engine stops" if self._ending else str(now.stage)
        left = [TextRun(f" {spin} ", "accent"), TextRun(f"{said} ", "accent")]
        if now.now is not None:
            left.append(TextRun(now.now.point.text, "strong"))
            left.append(TextRun(f"  repeat {now.now.repeat + 1}", "muted"))
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
    """Why this is measured now; how it stands."""
    why = now.now.why if now.now else "what to measure next is being chosen"
    yield fit((TextRun("   "), TextRun(why, "muted")), width)
    yield _standing(now, width)


def _standing(now: TuneProgress, width: int) -> Line:
    result = now.result
    if result is None or result.best is None:
        return (TextRun("   nothing is measured yet", "faint"),)
    best = f"{result.best.point.text}: {score_sentence(now.goal, result.best.score)}"
    said = join(
        [
            (TextRun(best, "strong"),),
            (TextRun(result.verdict, "muted"),) if result.verdict else (),
        ],
    )
    return fit((TextRun(" ★ ", "good"), *said), width)


def _ended(now: TuneProgress, width: int) -> Iterator[Line]:
    """The verdict whole, and the command line to paste."""
    yield (
        _standing(now, width)
        if not now.result or not now.result.verdict
        else (fit(_best_of(now), width))
    )
    result = now.result
    if result is None:
        return
    texts = [result.verdict, result.binds or "", *result.costs]
    for text in filter(None, texts[: MOST_LINES - 1]):
        for line in wrap(text, max(width - 4, 10))[:2]:
            yield (TextRun("   "), TextRun(line))
    if result.command:
        yield fit((TextRun("   $ ", "faint"), TextRun(result.command, "accent")), width)


def _best_of(now: TuneProgress) -> Line:
    best = now.result.best if now.result else None
    said = f"{best.point.text}: {score_sentence(now.goal, best.score)}" if best else ""
    return (TextRun(" ★ ", "good"), TextRun(said or "nothing was measured", "strong"))
