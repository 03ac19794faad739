"""What an engine shows that no request was ever sent to: how to send one."""

import json
import shlex
from collections.abc import Sequence

from collectors.contract.readings import Endpoint
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, width_of


def is_untouched(feed: Feed, shown: Snapshot) -> bool:
    """An engine of now waits for its first request, and none is under way."""
    loads = feed.load_desk is not None and feed.load_desk.running
    idle = shown.verdict.health is Health.IDLE and bool(shown.endpoints)
    now = feed.state is FeedState.LIVE and not loads
    return now and idle and shown.requests_seen == 0


def curl_lines(endpoint: Endpoint) -> list[str]:
    """A first request as people type it; a shell takes the lines as one."""
    base = endpoint.url or "http://localhost"
    options = "-k " if base.startswith("https:") else ""
    if endpoint.uds is not None:
        options += f"--unix-socket {shlex.quote(endpoint.uds)} "
    asked = (
        f'{{"model": {json.dumps(endpoint.model)},\n'
        '      "prompt": "Once upon a time", "max_tokens": 64}'
    )
    return [
        f"curl {options}{shlex.quote(f'{base}/v1/completions')} \\",
        "  -H 'Content-Type: application/json' \\",
        *f"  -d {shlex.quote(asked)}".split("\n"),
    ]


class Welcome(Panel):
    """Where it listens, a line to copy, the key that loads it, what will be here."""

    DEFAULT_CSS = """
    Welcome { height: 1fr; display: none; }
    """

    _endpoint: Endpoint | None = None

    def __init__(self, will_show: str, *, whole: bool) -> None:
        super().__init__()
        self._will_show = will_show
        self._whole = whole
        """How to send a request is told here, else where it is told."""

    def show(self, endpoint: Endpoint) -> None:
        """Take where the engine listens."""
        self._endpoint = endpoint
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows; blank ones only where there is room."""
        if self._endpoint is None:
            return ()
        will = (
            TextRun("With the first request: ", "accent"),
            TextRun(self._will_show, "muted"),
        )
        rows = self._how(self._endpoint, width) if self._whole else ELSEWHERE
        rows = [*rows, (), will] if width_of(will) < width else rows
        blank = () if self._whole and height < len(rows) + 2 else ((),)
        return [*blank, *(fit((TextRun(" "), *row), width) for row in rows)]

    def _how(self, endpoint: Endpoint, width: int) -> list[Line]:
        at = endpoint.uds or endpoint.url or ""
        answers = f"{endpoint.model} answers at "
        if len(answers) + len(at) + 18 > width:
            answers = "It answers at "
        curl = [(TextRun(f"  {each}", "strong"),) for each in curl_lines(endpoint)]
        return [
            (
                TextRun("No request yet. ", "strong"),
                TextRun(answers, "muted"),
                TextRun(at, "accent"),
            ),
            (),
            *curl,
            (),
            (
                TextRun("y ", "accent", "screen.copy_curl"),
                TextRun("copies the command   ", "muted", "screen.copy_curl"),
                TextRun("7 ", "accent", "app.look_at('load')"),
                TextRun("sends a load from here", "muted", "app.look_at('load')"),
            ),
        ]


ELSEWHERE: list[Line] = [
    (
        TextRun("No request yet. ", "strong"),
        TextRun("1 ", "accent", "app.look_at('overview')"),
        TextRun("says how to send one, ", "muted"),
        TextRun("7 ", "accent", "app.look_at('load')"),
        TextRun("sends a load.", "muted"),
    )
]
