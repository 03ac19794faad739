"""What an engine without any request shows: how to send one."""

import json
from collections.abc import Sequence

from collectors.contract.readings import Endpoint
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.printing.command import quoted
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, width_of


def is_untouched(feed: Feed, snapshot: Snapshot) -> bool:
    """Return True if a live engine has had no request and none is being sent."""
    loads = feed.load_desk is not None and feed.load_desk.running
    idle = snapshot.verdict.health is Health.IDLE and bool(snapshot.endpoints)
    now = feed.state is FeedState.LIVE and not loads
    return now and idle and snapshot.requests_seen == 0


def curl_lines(endpoint: Endpoint) -> list[str]:
    """Return a first request as a shell command of several lines."""
    base = endpoint.url or "http://localhost"
    options = "-k " if base.startswith("https:") else ""
    if endpoint.uds is not None:
        options += f"--unix-socket {quoted(endpoint.uds)} "
    body = (
        f'{{"model": {json.dumps(endpoint.model)},\n'
        '      "prompt": "Once upon a time", "max_tokens": 64}'
    )
    return [
        f"curl {options}{quoted(f'{base}/v1/completions')} \\",
        "  -H 'Content-Type: application/json' \\",
        *f"  -d {quoted(body)}".split("\n"),
    ]


class Welcome(Panel):
    """Address, curl command, key of the load, and what will be shown here."""

    DEFAULT_CSS = """
    Welcome { height: 1fr; display: none; }
    """

    _endpoint: Endpoint | None = None

    def __init__(self, will_show: str, *, whole: bool) -> None:
        super().__init__()
        self._will_show = will_show
        self._whole = whole
        """Explain here how to send a request, or where it is explained."""

    def show(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
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
