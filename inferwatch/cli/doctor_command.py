"""Runs ``inferwatch doctor``: all checks at once, none of them for ever."""

import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from queue import Empty, SimpleQueue

from inferwatch import __version__
from inferwatch.cli.checks import engine, host, record, terminal
from inferwatch.cli.checks.finding import Check, Finding, Standing, broken
from inferwatch.cli.checks.gpu import gpu_checks
from inferwatch.cli.say import PATIENCE_S, say_coloured, say_json, say_no_more, say_now
from inferwatch.visible import visible

WIDEST = 100
"""Longer lines are hard to read."""
NAMES = 18
"""Columns for what each line is about; longer ones stand alone."""
MARKS = {
    Standing.WORKS: ("✓", "+", "32"),
    Standing.LIMITED: ("!", "!", "33"),
    Standing.ABSENT: ("–", "-", "2"),
    Standing.BROKEN: ("✗", "x", "31;1"),
}
"""In UTF-8, elsewhere, and its colour."""
WORDS = {
    Standing.WORKS: "works",
    Standing.LIMITED: "works in part",
    Standing.ABSENT: "not here",
    Standing.BROKEN: "broken",
}

Found = tuple[Check, Sequence[Finding]]


def run_doctor(dcgm: Sequence[str], *, as_json: bool) -> int:
    """Look at everything and tell it; the exit status."""
    checks = [
        *engine.CHECKS,
        *gpu_checks(dcgm),
        *host.CHECKS,
        *record.CHECKS,
        *terminal.CHECKS,
    ]
    found = run_checks(checks, progress=sys.stderr.isatty())
    counts = Counter(each.standing for _, findings in found for each in findings)
    sound = not counts[Standing.BROKEN]
    if as_json:
        say_json(_as_json(found, sound=sound))
    else:
        say_coloured("\n".join(_Page().lines(found, counts)))
    return 0 if sound else 1


def run_checks(checks: Sequence[Check], *, progress: bool) -> list[Found]:
    """What each found, in their order; those that hang are left behind.

    Threads that no one can end must not keep us from ending: they are daemons.
    """
    done = SimpleQueue[tuple[int, Sequence[Finding]]]()
    began_s = time.monotonic()
    for number, check in enumerate(checks):
        threading.Thread(
            target=lambda number=number, check=check: done.put((number, _run(check))),
            daemon=True,
        ).start()
    found: dict[int, Sequence[Finding]] = {}
    shown = False
    while waiting := {n: each for n, each in enumerate(checks) if n not in found}:
        spent_s = time.monotonic() - began_s
        if progress and spent_s > PATIENCE_S:
            shown = True
            names = ", ".join(each.name for each in waiting.values())
            say_now(f"looking at {names} …")
        with suppress(Empty):
            number, findings = done.get(timeout=0.1)
            found.setdefault(number, findings)
        found |= {
            number: [_too_long(each)]
            for number, each in waiting.items()
            if spent_s > each.limit_s and number not in found
        }
    if shown:
        say_no_more()
    return [(each, found[number]) for number, each in enumerate(checks)]


def _run(check: Check) -> Sequence[Finding]:
    try:
        return check.find()
    except Exception as error:  # noqa: BLE001 - of a sick host anything is expected
        why = f"the check itself failed: {type(error).__name__}: {error}"
        return [broken(check.name, why[:300])]


def _too_long(check: Check) -> Finding:
    why = f"no answer within {check.limit_s:g} s: {check.too_long}"
    return broken(check.name, why)


def _as_json(found: Sequence[Found], *, sound: bool) -> dict[str, object]:
    return {
        "inferwatch": __version__,
        "sound": sound,
        "findings": [
            {"area": check.area, **asdict(each)}
            for check, findings in found
            for each in findings
        ],
    }


class _Page:
    """The findings as lines for this terminal."""

    def __init__(self) -> None:
        seen = sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if seen else WIDEST
        self._width = max(min(columns, WIDEST), 24)
        self._names = min(NAMES, self._width // 3)
        self._coloured = seen and not os.environ.get("NO_COLOR")
        self._unicode = "utf" in (sys.stdout.encoding or "").lower()

    def lines(self, found: Sequence[Found], counts: Counter[Standing]) -> Iterator[str]:
        """Area by area, and what it all means at the end."""
        yield from self._wrapped(
            f"inferwatch {__version__} · {host.platform_line()}", "", ""
        )
        for area, of_area in groupby(found, key=lambda each: each[0].area):
            yield ""
            yield self._in_colour(area, "1")
            for _, findings in of_area:
                for each in findings:
                    yield from self._finding(each)
        yield ""
        legend = [
            f"{self._mark(each)} {counts[each]} {WORDS[each]}" for each in Standing
        ]
        yield "   ".join(legend) if self._width >= 60 else "\n".join(legend)

    def _finding(self, finding: Finding) -> Iterator[str]:
        name, says = visible(finding.name), visible(finding.says)
        first = f"  {self._mark(finding.standing)} "
        indent = " " * (4 + self._names + 1)
        if len(name) > self._names:
            yield f"{first}{name}"
            yield from self._wrapped(says, indent, indent)
        else:
            lines = list(self._wrapped(says, indent, indent)) or [""]
            yield f"{first}{name:<{self._names}} {lines[0].lstrip()}"
            yield from lines[1:]
        if finding.fix:
            arrow = "→ " if self._unicode else "> "
            fix = self._wrapped(visible(finding.fix), indent + arrow, f"{indent}  ")
            yield from (self._in_colour(line, "36") for line in fix)

    def _wrapped(self, text: str, first: str, rest: str) -> list[str]:
        return textwrap.wrap(
            text,
            self._width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
        )

    def _mark(self, standing: Standing) -> str:
        symbol, plain, colour = MARKS[standing]
        return self._in_colour(symbol if self._unicode else plain, colour)

    def _in_colour(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text
