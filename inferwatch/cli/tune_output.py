"""What a tune came to, printed in the form that was asked for."""

import msgspec

from inferwatch.cli.say import say, say_json
from inferwatch.cli.tune_options import TuneOptions
from inferwatch.tune.progress import TuneEnded, TuneProgress
from inferwatch.tune.scores import HEADS, score_text

INTERRUPTED = 130
"""The exit status, as of a program that Ctrl-C ended."""


def print_result(task: TuneEnded, options: TuneOptions) -> int:
    """Print it in the form that was asked for; the exit status."""
    now = task.progress
    if options.as_json:
        say_json(msgspec.to_builtins(now.result))
    else:
        say(_text(now))
    if task.outcome != "done":
        say(f"{task.outcome}; continue with: inferwatch tune --resume {now.tune_id}")
    if task.outcome == "interrupted":
        return INTERRUPTED
    return int(now.result is None or now.result.best is None)


def _text(now: TuneProgress) -> str:
    lines = [f"{HEADS[now.goal]:>10}  setting"]
    lines += [
        f"{score_text(now.goal, each.score):>10}  {each.point.text}"
        for each in (now.result.points if now.result else ())
    ]
    return "\n".join(lines)
