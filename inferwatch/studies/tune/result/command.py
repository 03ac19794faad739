"""The best setting as a command line to paste."""

import shlex
from collections.abc import Sequence

from inferwatch.studies.tune.flags import plain_name
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.space import Point

DEMO = "demo"
"""Stands for the demo's model, which cannot be served by a command."""


def serve_words(point: Point, plan: TunePlan) -> list[str]:
    """The arguments after the model: the user's flags and those of the setting."""
    varied = {flag for flag, _ in point.flags}
    return [*without(plan.engine_flags, varied), *point.command_flags]


def vllm_command(point: Point, plan: TunePlan) -> str | None:
    """``vllm serve …``, quoted for a shell; None if others started the engine."""
    if plan.url is not None or plan.model == DEMO:
        return None
    return shlex.join(["vllm", "serve", plan.model, *serve_words(point, plan)])


def inferwatch_command(point: Point, plan: TunePlan) -> str | None:
    """``inferwatch serve … -- …``, quoted for a shell; None as in ``vllm_command``."""
    if plan.url is not None or plan.model == DEMO:
        return None
    words = serve_words(point, plan)
    flags = ["--", *words] if words else []
    return shlex.join(["inferwatch", "serve", plan.model, *flags])


def flags_line(point: Point) -> str:
    """The flags only, for servers that are started in another way."""
    return shlex.join(point.command_flags)


def without(words: Sequence[str], flags: set[str]) -> list[str]:
    """The arguments without the given flags and their values.

    >>> without(["--max-num-seqs", "8", "--seed=1", "--no-x"], {"max-num-seqs", "x"})
    ['--seed=1']
    """
    kept: list[str] = []
    skipping = False
    for word in words:
        if skipping and not word.startswith("--"):
            skipping = False
            continue
        skipping = False
        name, equals, _ = word.partition("=")
        plain = plain_name(name)
        ours = word.startswith("--") and (
            plain in flags or plain.removeprefix("no-") in flags
        )
        skipping = ours and not equals and plain in flags
        if not ours:
            kept.append(word)
    return kept
