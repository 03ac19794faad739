"""Checks of the terminal that the dashboard is drawn on, and of ssh."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from inferwatch.cli.checks.finding import Check, CheckResult, absent, limited, works

AREA = "Terminal"
COLUMNS, ROWS = 80, 24
SSH_S = 3.0


def _screen() -> Sequence[CheckResult]:
    if not sys.stdout.isatty():
        says = "this output is none: watching commands would run --headless"
        return [absent("screen", says)]
    size = shutil.get_terminal_size()
    encoding = (sys.stdout.encoding or "?").lower()
    says = f"{size.columns} × {size.lines}, {_colours()}, {encoding.upper()}"
    facts = {"columns": size.columns, "rows": size.lines, "encoding": encoding}
    if "utf" not in encoding:
        fix = "LANG=C.UTF-8 (and LC_ALL, where it is set)"
        return [limited("screen", f"{says}: charts need UTF-8", fix, **facts)]
    if size.columns < COLUMNS or size.lines < ROWS:
        fix = f"make it {COLUMNS} × {ROWS} or larger"
        return [limited("screen", f"{says}: panels are left out", fix, **facts)]
    return [works("screen", says, **facts)]


def _colours() -> str:
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if os.environ.get("COLORTERM") in {"truecolor", "24bit"}:
        return "true colour"
    if "256color" in term:
        return "256 colours"
    return "no colours" if term in {"", "dumb"} else "16 colours"


def _ssh() -> Sequence[CheckResult]:
    command = shutil.which("ssh")
    if command is None:
        says = "not installed: `attach ssh://…` needs it"
        return [absent("ssh", says, "install OpenSSH's client")]
    try:
        completed = subprocess.run(
            [command, "-V"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SSH_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [limited("ssh", f"{command} does not run: {error}"[:200])]
    version = (completed.stderr or completed.stdout).decode("utf-8", "replace").strip()
    return [works("ssh", version.partition(",")[0] or command, path=command)]


CHECKS = (
    Check(area=AREA, name="screen", find=_screen),
    Check(area=AREA, name="ssh", find=_ssh),
)
