"""Runs the checks, each with its time, and prints what they found."""

import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from queue import Empty, SimpleQueue

from inferwatch import __version__
from inferwatch.cli.checks import engine, host, record, terminal
from inferwatch.cli.checks.finding import Check, CheckResult, CheckStatus, broken
from inferwatch.cli.checks.gpu import gpu_checks
from inferwatch.cli.say import PATIENCE_S, say_coloured, say_json, say_no_more, say_now
from inferwatch.visible import visible

WIDEST = 100
"""The most columns of a line: longer ones are hard to read."""
ABREAST = 60
"""The fewest columns for a legend of one line."""
NAMES = 18
"""The columns for names; a longer name has a line of its own."""
MARKS = {
    CheckStatus.WORKS: ("✓", "+", "32"),
    CheckStatus.LIMITED: ("!", "!", "33"),
    CheckStatus.ABSENT: ("–", "-", "2"),
    CheckStatus.BROKEN: ("✗", "x", "31;1"),
}
"""The mark in UTF-8, the mark elsewhere, and its SGR colour."""
WORDS = {
    CheckStatus.WORKS: "works",
    CheckStatus.LIMITED: "works in part",
    CheckStatus.ABSENT: "not here",
    CheckStatus.BROKEN: "broken",
}
CheckOutcome = tuple[Check, Sequence[CheckResult]]


def run_doctor(dcgm: Sequence[str], *, as_json: bool) -> int:
    """Run and print all checks, and return the exit status."""
    checks = [
        *gpu_checks(dcgm),
        *host.CHECKS,
        *record.CHECKS,
        *terminal.CHECKS,
        *engine.CHECKS,
    ]
    outcomes = run_checks(checks, progress=sys.stderr.isatty())
    if as_json:
        every = [
            (check.area, each) for check, findings in outcomes for each in findings
        ]
        sound = all(each.standing is not CheckStatus.BROKEN for _, each in every)
        say_json(_as_json(every, sound=sound))
        return 0 if sound else 1
    counts = Counter[CheckStatus]()
    page = DoctorReport()
    say_coloured("\n".join(page.head()))
    for area, of_area in groupby(outcomes, key=lambda each: each[0].area):
        say_coloured("\n".join(page.heading(area)))
        for _, findings in of_area:
            counts.update(each.standing for each in findings)
            say_coloured("\n".join(page.findings(findings)))
    say_coloured("\n".join(page.legend(counts)))
    return 1 if counts[CheckStatus.BROKEN] else 0


def run_checks(checks: Sequence[Check], *, progress: bool) -> Iterator[CheckOutcome]:
    """Yield each check's findings, in order; a check that hangs is abandoned.

    All run at once in daemon threads: a thread that hangs must not keep this process
    from ending.
    """
    done = SimpleQueue[tuple[int, Sequence[CheckResult]]]()
    began_s = time.monotonic()
    for number, check in enumerate(checks):
        threading.Thread(
            target=lambda number=number, check=check: done.put((number, _run(check))),
            daemon=True,
        ).start()
    findings_by_number: dict[int, Sequence[CheckResult]] = {}
    for number, check in enumerate(checks):
        while number not in findings_by_number:
            with suppress(Empty):
                other, findings = done.get(timeout=0.1)
                findings_by_number[other] = findings
            spent_s = time.monotonic() - began_s
            if number not in findings_by_number and spent_s > check.limit_s:
                findings_by_number[number] = [_too_long(check)]
            elif progress and spent_s > PATIENCE_S:
                late = [
                    each.name
                    for n, each in enumerate(checks)
                    if n not in findings_by_number
                ]
                say_now(textwrap.shorten(f"looking at {', '.join(late)}", 60))
        if progress:
            say_no_more()
        yield check, findings_by_number[number]


def _run(check: Check) -> Sequence[CheckResult]:
    try:
        return check.find()
    except Exception as error:  # noqa: BLE001 - a faulty host can raise anything
        why = f"the check itself failed: {type(error).__name__}: {error}"
        return [broken(check.name, why[:300])]


def _too_long(check: Check) -> CheckResult:
    why = f"no answer within {check.limit_s:g} s: {check.too_long}"
    return broken(check.name, why)


def _as_json(
    findings: Sequence[tuple[str, CheckResult]], *, sound: bool
) -> dict[str, object]:
    return {
        "inferwatch": __version__,
        "sound": sound,
        "findings": [{"area": area, **asdict(each)} for area, each in findings],
    }


class DoctorReport:
    """Turns findings into lines for this terminal."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if is_terminal else WIDEST
        self._width = max(min(columns, WIDEST), 24)
        self._names = min(NAMES, self._width // 3)
        self._coloured = is_terminal and not os.environ.get("NO_COLOR")
        self._unicode = "utf" in (sys.stdout.encoding or "").lower()

    def head(self) -> list[str]:
        """Return the report's first lines: versions and platform."""
        own = f"inferwatch {__version__} · {host.platform_line()}"
        return self._wrapped(own, "", "")

    def heading(self, area: str) -> list[str]:
        return ["", self._in_colour(area, "1")]

    def findings(self, findings: Sequence[CheckResult]) -> list[str]:
        """Return one or more lines for each finding."""
        return [line for each in findings for line in self._finding(each)]

    def legend(self, counts: Mapping[CheckStatus, int]) -> list[str]:
        """Return what the marks mean, with the number of findings of each."""
        each = [
            f"{self._mark(mark)} {counts[mark]} {WORDS[mark]}" for mark in CheckStatus
        ]
        return ["", "   ".join(each)] if self._width >= ABREAST else ["", *each]

    def _finding(self, finding: CheckResult) -> Iterator[str]:
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

    def _mark(self, standing: CheckStatus) -> str:
        symbol, plain, colour = MARKS[standing]
        return self._in_colour(symbol if self._unicode else plain, colour)

    def _in_colour(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured else text
