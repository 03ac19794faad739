"""The preview of a session: settings, results, notes and actions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_duration,
    format_figure,
    format_rate,
    format_share,
)
from inferwatch.metrics.load.client_verdict import ClientState, client_words
from inferwatch.studies.compare.reading.configuration import differing
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join,
    ruled,
    width_of,
    wrapped,
)
from inferwatch.ui.sessions.index import ListedSession, SessionPreview
from inferwatch.ui.sessions.table import ENOUGH_FOR_P99, state_of
from inferwatch.ui.widgets.counter_facts import MEAN

ENGINE = {
    "engine vllm_version": "vLLM",
    "engine device": "device",
    "engine dtype": "dtype",
    "engine max_num_seqs": "max_num_seqs",
    "engine max_num_batched_tokens": "max_num_batched_tokens",
    "engine num_kv_blocks": "KV blocks",
    "engine tensor_parallel": "tensor parallel",
    "gpu": "GPU",
    "gpu driver": "driver",
    "gpu power limit": "power limit",
}
PLAN = {
    "arrivals": "arrivals",
    "rate_per_s": "requests/s",
    "concurrency": "users",
    "duration_s": "seconds",
    "requests": "requests",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "slo": "SLO",
}
"""Labels of the settings in a preview."""
GPU_MEANS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "hbm_gbps_mean": (f"HBM {MEAN} GB/s", format_rate),
    "sm_active_mean": ("SM active", format_share),
    "power_w_mean": ("W", format_count),
    "joules_per_token": ("J/token", format_figure),
}
"""Label and format of GPU means over the whole session."""
LONG_NUMBER = re.compile(r"\d+\.\d{4,}")
ROOMY = 14
"""Least height for the actions below a session."""
CLOSED, OPEN = ("concurrency",), ("rate_per_s",)
"""Settings that the other kind of load ignores."""
NEXT: tuple[tuple[str, str], ...] = (
    ("enter", "replay it"),
    ("m", "mark it, to compare: mark two or more, then press c"),
    ("R", "give it a name"),
    ("T", "change its tags: keep protects it from pruning"),
    ("d", "move it to the bin; u brings it back"),
)
MARKS = {
    ClientState.OK: ("●", "good"),
    ClientState.CLIENT_BOUND: ("▲", "warn"),
    ClientState.UNKNOWN: ("○", "muted"),
}


Against = tuple[str, SessionPreview | None]
"""Id of another session, and its preview once it is read."""


class PreviewPanel(Panel):
    """Settings, results, notes and possible actions, as far as they fit."""

    DEFAULT_CSS = """
    PreviewPanel { height: 1fr; }
    """

    _session: ListedSession | None = None
    _preview: SessionPreview | None = None
    _against: Against | None = None

    def show(
        self,
        session: ListedSession | None,
        preview: SessionPreview | None,
        against: Against | None,
    ) -> None:
        """Show a session and the marked one to compare it with.

        Previews may come later.
        """
        self._session, self._preview, self._against = session, preview, against
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw as much of the session as fits, then the actions."""
        after: list[Line] = [ruled((TextRun("what next", "strong"),), (), width)]
        after += [(TextRun(f" {key:<6}", "accent"), TextRun(do)) for key, do in NEXT]
        if self._session is None:
            return ()
        if height < ROOMY:
            after = []
        room = max(height - len(after), 0)
        lines = list(_lines(self._session, self._preview, width))
        if self._preview is not None:
            if self._against is not None:
                lines += _differences(self._preview, *self._against, width)
            lines += _notes(self._preview, width)
        if len(lines) > room:
            note = f" … {len(lines) - room + 1} more lines"
            lines = [*lines[: max(room - 1, 0)], (TextRun(note, "muted"),)]
        return [fit(line, width) for line in (*lines, *after)][:height]


def _lines(
    session: ListedSession, preview: SessionPreview | None, width: int
) -> Iterator[Line]:
    row = session.row
    glyph, word, ink = state_of(session)
    title = (TextRun(row.id, "strong"), TextRun(f" {session.title}"))
    yield ruled(title, (TextRun(f"{glyph} {word}", ink),), width)
    command = (TextRun(row.command, "muted"),) if row.name else ()
    began = (TextRun(row.began_text()),)
    lasted = (TextRun(f"{format_duration(row.duration_s).strip()} watched"),)
    yield (TextRun(" "), *join((began, lasted, command)))
    if row.model:
        yield (TextRun(f" {row.model}"),)
    if row.reason:
        yield from wrapped(row.reason, width, "muted")
    if row.imported_from:
        yield from wrapped(f"imported from {row.imported_from}", width, "muted")
    yield from _figures(session, preview)
    if preview is None:
        yield (TextRun(" reading …", "faint"),)
        return
    if preview.gpus:
        means = [
            (TextRun(f"{name} ", "muted"), TextRun(show(preview.gpus[key]).strip()))
            for key, (name, show) in GPU_MEANS.items()
            if key in preview.gpus
        ]
        yield (TextRun(" "), *join(means))
    yield from _settings("engine", ENGINE, preview.settings, width)
    yield from _load(preview, width)


def _notes(preview: SessionPreview, width: int) -> Iterator[Line]:
    if preview.notes:
        yield ruled((TextRun("notes", "strong"),), (), width)
    for t_ns, text in preview.notes:
        yield (TextRun(f" {t_ns / NS_PER_S:7.1f} s  ", "muted"), TextRun(text))


def _differences(
    here: SessionPreview, other: str, there: SessionPreview | None, width: int
) -> Iterator[Line]:
    """Yield settings that differ from the marked session."""
    if there is None:
        return
    yield ruled((TextRun(f"settings that differ from {other}", "strong"),), (), width)
    settings = differing([there.settings, here.settings])
    if not settings:
        yield (TextRun(" none of the recorded ones"),)
    for setting in settings:
        before, after = (
            UNKNOWN if each is None else _rounded(each) for each in setting.values
        )
        yield (
            TextRun(f" {setting.name} ", "muted"),
            TextRun(f"{before} → {after}"),
        )


def _figures(session: ListedSession, preview: SessionPreview | None) -> Iterator[Line]:
    row, summary = session.row, session.summary
    if preview is not None and preview.row is not None:
        row = preview.row  # counts of a session being recorded move together
    counts = {"requests": row.requests, "steps": row.steps}
    if preview is not None:
        counts["sent by our load"] = preview.requests
    texts = [(f"{format_count(n).strip()} {what}",) for what, n in counts.items() if n]
    if texts:
        yield (TextRun(" "), *join([(TextRun(text),) for (text,) in texts]))
    if summary is not None and summary.ttft_mean_s is not None:
        mean = f"TTFT {MEAN} {format_duration(summary.ttft_mean_s).strip()}"
        note = f"seen by {summary.vantage}, n {format_count(summary.n).strip()}"
        rate = f"{format_rate(summary.output_tokens_per_s).strip()} tok/s"
        means = (
            (TextRun(mean, "strong"),),
            (TextRun(note, "muted"),),
            (TextRun(rate),),
        )
        yield (TextRun(" "), *join(means))
    if summary is not None and summary.ttft_p99_s is not None:
        weak = "~" if summary.n < ENOUGH_FOR_P99 else ""
        p99 = f"TTFT p99 {weak}{format_duration(summary.ttft_p99_s).strip()}"
        note = f"seen by {summary.vantage}, n {format_count(summary.n).strip()}"
        rate = f"{format_rate(summary.output_tokens_per_s).strip()} tok/s"
        facts = ((TextRun(p99, "strong"),), (TextRun(note, "muted"),), (TextRun(rate),))
        yield (TextRun(" "), *join(facts))


def _load(preview: SessionPreview, width: int) -> Iterator[Line]:
    """Yield lines on the latest load plan, and on whether its client kept up."""
    plan = preview.load
    unheeded = OPEN if plan.get("arrivals") == "closed" else CLOSED
    names = {name: text for name, text in PLAN.items() if name not in unheeded}
    yield from _settings("load", names, plan, width)
    if plan or preview.requests:
        mark, ink = MARKS[preview.client.state]
        why = f": {preview.client.why}" if preview.client.why else ""
        text = f"{mark} {client_words(preview.client.state)}{why}"
        yield from wrapped(text, width, ink)


def _rounded(value: str) -> str:
    """Return a setting, a number with many decimals in three digits.

    >>> _rounded("1.1364866634102655"), _rounded("0.95"), _rounded("0.32.0")
    ('1.14', '0.95', '0.32.0')
    """
    many = LONG_NUMBER.fullmatch(value)
    return format_figure(float(value)).strip() if many else value


def _settings(
    title: str, names: Mapping[str, str], values: Mapping[str, str | None], width: int
) -> Iterator[Line]:
    facts: list[Line] = [
        (TextRun(f"{label} ", "muted"), TextRun(_rounded(value)))
        for name, label in names.items()
        if (value := values.get(name))
    ]
    if facts:
        yield ruled((TextRun(title, "strong"),), (), width)
    row: list[Line] = []
    for fact in facts:
        if row and width_of(join((*row, fact))) + 2 > width:
            yield (TextRun(" "), *join(row))
            row = []
        row.append(fact)
    if row:
        yield (TextRun(" "), *join(row))
