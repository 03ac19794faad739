"""All checks before two sides are compared, in the order in which they are shown."""

import math
from collections.abc import Callable, Iterable, Iterator

from inferwatch.formatting import counted, format_clock
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.checks.drift import check_drift
from inferwatch.studies.compare.checks.load import (
    SEED,
    TOLERANCE,
    check_load,
    check_tool,
    load_settings,
)
from inferwatch.studies.compare.checks.machine import check_clocks, check_host
from inferwatch.studies.compare.checks.requests import check_client, check_requests
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.configuration import (
    LOAD,
    DifferingSetting,
    differing,
    setting_name,
)
from inferwatch.studies.compare.reading.live_limits import LIMITS, limit_text
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.span import WarmupCut

LENGTH_TOLERANCE = 0.25


def check_length(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check that the compared parts are about equally long."""
    runs = (*a.runs, *b.runs)
    longest = max(runs, key=lambda run: run.span.length_s)
    shortest = min(runs, key=lambda run: run.span.length_s)
    lengths = f"{a.first.span.length_s:.0f} s of {a.name}, "
    lengths += f"{b.first.span.length_s:.0f} s of {b.name}"
    if a.is_repeated or b.is_repeated:
        lengths = f"{shortest.span.length_s:.0f} s of {shortest.name}, "
        lengths += f"{longest.span.length_s:.0f} s of {longest.name}"
    doubts = []
    if shortest.span.length_s < (1 - LENGTH_TOLERANCE) * longest.span.length_s:
        doubts.append(f"The compared spans differ in length: {lengths}.")
    doubts += [text for run in runs for text in _several(run)]
    return judged("length", doubts, f"Compared are {lengths}.")


def _several(run: SessionNumbers) -> Iterator[str]:
    if run.span.load_runs > 1:
        yield (
            f"{run.name} holds {run.span.load_runs} load runs; compared is "
            f"{format_clock(run.span.start_ns).strip()} to "
            f"{format_clock(run.span.end_ns).strip()} of the session."
        )


def check_warm_up(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Say how much warm-up was cut from each run, and whether the rest is steady."""
    runs = (*a.runs, *b.runs)
    doubts = [
        f"{run.name} never settles, so its means say little about another run."
        for run in runs
        if run.span.cut is WarmupCut.UNSETTLED
    ]
    cuts = ", ".join(f"{run.span.from_s:.1f} s of {run.name}" for run in runs)
    return judged("warm-up", doubts, f"Cut as warm-up: {cuts}.")


MODEL, DEVICE = "engine model", "engine device"
VERSIONS = ("engine vllm_version", "inferwatch")
GPU, DRIVER, POWER = "gpu", "gpu driver", "gpu power limit"
OF_THE_MACHINE = {MODEL, DEVICE, *VERSIONS, GPU, DRIVER, POWER}
MOST_SETTINGS = 4


def check_model(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check that all runs served the same model and tokenizer."""
    models = _values(MODEL, a, b)
    doubts = []
    if len(models) > 1:
        doubts.append(
            f"The models differ ({', '.join(models)}): what changed may be the "
            "model's, and a token need not be the same of both."
        )
    doubts += _tokenizer(a, b)
    return judged("model", doubts, _both_sides("served", models, MODEL, a, b))


ERRORS = 3.0
"""Means within so many standard errors may differ by which requests they are of."""


def _tokenizer(a: ComparedSide, b: ComparedSide) -> Iterator[str]:
    """Warn if the same plan gave prompts of other lengths: the tokenizer differs.

    The tokenizer is not recorded, but the same plan and seed send the same text.
    """
    plans = [load_settings(run) for run in (*a.runs, *b.runs)]
    if not plans[0].get(SEED) or any(plan != plans[0] for plan in plans):
        return
    if _differ(a.load.requests, b.load.requests):
        return  # the prompts differ
    before, after = a.load.prompt_tokens, b.load.prompt_tokens
    chance = ERRORS * math.hypot(a.load.prompt_tokens_error, b.load.prompt_tokens_error)
    if (
        before
        and after
        and _differ(before, after)
        and abs(after - before) > chance  # they may be other requests of one plan
    ):
        yield (
            f"The same plan and seed made prompts of {before:,.0f} and {after:,.0f} "
            "tokens: another tokenizer cut them, and what is said by token is of other "
            "tokens."
        )


def _differ(before: float, after: float) -> bool:
    return abs(after - before) > TOLERANCE * before


def check_engine(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Name the versions of vLLM; they may differ, as that may be what is compared."""
    versions = _values(VERSIONS[0], a, b)
    good = _both_sides("ran on vLLM", versions, VERSIONS[0], a, b)
    if len(versions) > 1:
        good = f"vLLM differs ({', '.join(versions)}): part of what is compared."
    return judged("engine", [], good)


def check_gpu(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    sentences = {
        GPU: "GPUs differ",
        DEVICE: "Devices differ",
        DRIVER: "GPU drivers differ",
        POWER: "Power limits of GPUs differ",
    }
    differences = [
        f"{words} ({', '.join(values)})"
        for name, words in sentences.items()
        if len(values := _values(name, a, b)) > 1
    ]
    doubts = []
    if differences:
        doubts = [f"{'. '.join(differences)}: what changed may be the hardware's."]
    gpus, devices = _values(GPU, a, b), _values(DEVICE, a, b)
    good = _both_sides("ran on", gpus, GPU, a, b)
    if not gpus and devices == ["cpu"]:
        good = "Both ran on the processor, without a GPU."
    return judged("gpu", doubts, good)


def engine_differences(a: ComparedSide, b: ComparedSide) -> list[DifferingSetting]:
    """The settings of the engine that differ between any of the runs."""
    both = [run.configuration for run in (*a.runs, *b.runs)]
    return [
        each
        for each in differing(both)
        if each.name not in OF_THE_MACHINE and not each.name.startswith(LOAD)
    ]


def check_settings(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Name the engine settings that differ between A and B: what is compared.

    Only settings that differ between runs of one side cast doubt on the comparison.
    """
    both = [run.configuration for run in (*a.runs, *b.runs)]
    if not all(any(each.values()) for each in both):
        return judged("settings", [], None)
    names = [setting_name(each.name) for each in engine_differences(a, b)]
    doubts = []
    for side in (a, b):
        within = differing([run.configuration for run in side.runs])
        if own := [each.name for each in within if not each.name.startswith(LOAD)]:
            doubts.append(f"The runs of {side.name} differ in {_some(own)}.")
    if not names:
        return judged("settings", doubts, "No recorded setting of the engine differs.")
    text = f"{counted(len(names), 'setting')} of the engine"
    text = f"{text} {'differs' if len(names) == 1 else 'differ'} ({_some(names)})"
    return judged("settings", doubts, f"{text}: what is compared.")


def _some(names: list[str]) -> str:
    more = ["…"] if len(names) > MOST_SETTINGS else []
    return ", ".join([*names[:MOST_SETTINGS], *more])


def _values(name: str, a: ComparedSide, b: ComparedSide) -> list[str]:
    """The distinct known values of a setting over all runs, in order."""
    every = (run.configuration.get(name) for run in (*a.runs, *b.runs))
    return list(dict.fromkeys(each for each in every if each is not None))


def _both_sides(
    verb: str, values: Iterable[str], name: str, a: ComparedSide, b: ComparedSide
) -> str | None:
    """A sentence ``Both <verb> <values>.``; None if a run's value is unknown."""
    every = (run.configuration.get(name) for run in (*a.runs, *b.runs))
    return f"Both {verb} {', '.join(values)}." if None not in set(every) else None


MOST_NAMED = 3


def check_recording(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check for missing readings, engine restarts and clock steps."""
    runs = (*a.runs, *b.runs)
    doubts = [text for run in runs for text in _doubts(run)]
    is_ours = all(run.row.imported_from is None for run in runs)
    return judged("recording", doubts, "No reading is missing." if is_ours else None)


def _doubts(run: SessionNumbers) -> Iterator[str]:
    gaps = run.conditions.gaps
    if run.row.unrecorded:
        yield f"{run.name} is missing {counted(run.row.unrecorded, 'reading')}."
    if gaps.dropped:
        yield f"{counted(gaps.dropped, 'reading')} of {run.name} were lost on the way."
    if run.row.state is SessionState.INTERRUPTED:
        yield f"{run.name} was cut off: its recorder died, and what came then is lost."
    if run.row.state is SessionState.UNKNOWN:
        yield f"{run.name} may still be recorded elsewhere: what comes is left out."
    if gaps.lives:
        more = ["…"] if len(gaps.lives) > MOST_NAMED else []
        text = "; ".join([*gaps.lives[:MOST_NAMED], *more])
        yield f"{run.name} is not of one life of its engine ({text}): measure again."
    if gaps.stepped_s:
        most_s = max(gaps.stepped_s, key=abs)
        yield (
            f"The wall clock of {run.name} stepped by {most_s:+,.1f} s: it was set, or "
            "the host slept."
        )


def check_order(a: ComparedSide, b: ComparedSide) -> QualityCheck | None:
    """Check that A's and B's runs alternated; None for single runs."""
    if not (a.is_repeated or b.is_repeated):
        return None
    began = sorted(
        (run.row.started_ns, letter)
        for side, letter in ((a, "A"), (b, "B"))
        for run in side.runs
    )
    if began[0][0] <= 0:
        return judged("order", (), None)
    order = "".join(letter for _, letter in began)
    first, last = (a, b) if order[0] == "A" else (b, a)
    if order == order[0] * len(first.runs) + order[-1] * len(last.runs):
        doubt = (
            f"All runs of {last.name} came after all runs of {first.name}: a machine "
            "that drifts would look like a change. Run them in turn (A B A B)."
        )
        return judged("order", [doubt], None)
    return judged("order", (), f"The runs came in turn: {' '.join(order)}.")


SUBJECT = "limits"


def check_limits(a: ComparedSide, b: ComparedSide) -> QualityCheck | None:
    """Check that no limit changed during a run; None if no engine has live limits."""
    runs = (*a.runs, *b.runs)
    if not any(run.conditions.limits for run in runs):
        return None
    doubts = [text for run in runs for text in _changed(run)]
    return judged(SUBJECT, doubts, "No limit was changed while it was measured.")


def _changed(run: SessionNumbers) -> Iterator[str]:
    every = run.conditions.limits
    if len(every) < 2:
        return
    limits = [(name, limit_text(every, name)) for name in LIMITS]
    moved = [f"{name} {text}" for name, text in limits if text and not text.isdecimal()]
    yield (
        f"Limits of {run.name} were changed while it was measured "
        f"({', '.join(moved)}): its numbers are of no one setting; compare a part "
        "under the same (--a-from, --a-to, --b-from, --b-to)."
    )


CHECKS: tuple[Callable[[ComparedSide, ComparedSide], QualityCheck | None], ...] = (
    check_requests,
    check_load,
    check_tool,
    check_client,
    check_model,
    check_engine,
    check_gpu,
    check_settings,
    check_limits,
    check_length,
    check_warm_up,
    check_drift,
    check_clocks,
    check_host,
    check_order,
    check_recording,
)


def quality_of(a: ComparedSide, b: ComparedSide) -> tuple[QualityCheck, ...]:
    """The results of all checks that apply, including those that found nothing."""
    results = (check(a, b) for check in CHECKS)
    return tuple(each for each in results if each is not None)
