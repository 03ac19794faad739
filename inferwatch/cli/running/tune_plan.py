"""The options of ``inferwatch tune``, and how they make a plan."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferwatch.cli.running.load_plan import (
    ARRIVAL_FIELDS,
    FLAG_OF,
    LoadOptions,
    plan_fields,
)
from inferwatch.cli.words import is_address
from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.studies.answers.asking import PROMPTS
from inferwatch.studies.tune.answers import may_change_answers
from inferwatch.studies.tune.flags import read_variables, split_present
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.space import LIVE_FLAGS, UNSET, Point, Variable, space_of

DEMO = "demo"
DEMO_TRIAL_S = 8.0
DEMO_USERS = 48
"""More than the largest setting in the help's example, so that the settings differ."""
WARMUP_S = 5.0
WARMUP_SHARE = 0.25
"""The most of a trial that is warm-up."""
HOW_MUCH = """say how much to send at each setting:
  --rate 5            five requests a second, whatever the engine does
  --concurrency 64    64 users, each sending its next when answered
  --like SESSION, --trace FILE    replay recorded traffic
  --goal knee --slo 'ttft_s<0.5'  find the highest rate that meets it
  --plan FILE.toml    all of it in a file"""
OF_GOOD = {Goal.GOODPUT, Goal.KNEE, Goal.COST}
"""Goals that need objectives, to tell which requests are good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of ``inferwatch tune``; None where one is not given."""

    target: str | None
    flags: tuple[str, ...]
    """The flags after ``--``."""
    fields: Mapping[str, Any]
    """Fields of the load, as given by flags."""
    plan: Path | None
    vary: tuple[str, ...]
    goal: str | None
    slo: str | None
    repeats: int
    trial_s: float | None
    warmup_s: float | None
    budget_s: float | None
    answers: int | None
    gpu_hour: float | None
    currency: str | None
    allow_load: bool
    as_json: bool
    markdown: bool
    html: Path | None
    force: bool
    headless: bool
    name: str | None
    database: Path | None
    lists: bool
    show: str | None
    resume: str | None

    @property
    def recorded(self) -> str | None:
        """The flag that asks for a recorded tune, if any."""
        flags = {
            "--list": self.lists,
            "--show": self.show is not None,
            "--resume": self.resume is not None,
        }
        names = [flag for flag, there in flags.items() if there]
        if len(names) > 1:
            raise UsageError(f"{names[0]} and {names[1]}: give one of them")
        if names and (self.target or self.flags or self.vary):
            raise UsageError(
                f"{names[0]} is of a tune that was recorded, with options of its own: "
                "leave out MODEL, --vary and what follows --"
            )
        return names[0] if names else None

    @property
    def on_screen(self) -> bool:
        return not (self.headless or self.as_json or self.markdown)


def tune_plan(options: TuneOptions) -> TunePlan:
    """Return the plan that the options ask for.

    Raises:
        UsageError: an option is missing or wrong.
    """
    if options.target is None:
        raise UsageError(
            "which engine? inferwatch tune MODEL --vary FLAG=VALUES starts one for a "
            "model, `demo` is a small one, a URL one that runs"
        )
    _refuse_two_forms(options)
    if options.flags and not options.flags[0].startswith("-"):
        raise UsageError(
            f"{options.flags[0]!r} is not a flag of `vllm serve`: write these "
            "after --, as -- --max-num-seqs 64"
        )
    variables = read_variables(options.vary)
    url = _url(options.target)
    if url is not None:
        _refuse_restarts(options, variables)
    engine_flags, present_flags = split_present(options.flags, variables)
    left_out = {each.flag: UNSET for each in variables if UNSET in each.values}
    present = left_out | dict(present_flags)
    start = ((each.flag, present.get(each.flag, each.values[0])) for each in variables)
    if len(space_of(variables, Point(flags=tuple(start))).points) < 2:
        raise UsageError(
            f"--vary {variables[0].flag}={variables[0].values[0]} leaves nothing to "
            "choose from: give it more values"
        )
    goal = _goal(options)
    load = _load(options, goal, url)
    return TunePlan(
        tune_id=new_tune_id(),
        model="" if url else options.target,
        url=url,
        engine_flags=engine_flags,
        vary=tuple((each.flag, each.values) for each in variables),
        present=tuple(present.items()),
        goal=goal,
        load=load,
        like=load.trace_of if options.fields.get("like") else None,
        repeats=options.repeats,
        budget_s=options.budget_s,
        seed=load.seed,
        answers=_answers(options, variables),
        gpu_hour=options.gpu_hour,
        currency=options.currency or "$",
        name=options.name,
    )


def _answers(options: TuneOptions, variables: tuple[Variable, ...]) -> int:
    """Return how many answers to compare; by default 0 unless flags may change them."""
    if options.answers is not None:
        return options.answers
    return PROMPTS if any(may_change_answers(each.flag) for each in variables) else 0


def new_tune_id() -> str:
    """Return a new id for a tune, short enough to type."""
    return f"t{secrets.token_hex(3)}"


def _refuse_two_forms(options: TuneOptions) -> None:
    if options.as_json and options.markdown:
        raise UsageError("--json and --markdown are two forms of one result: give one")
    if options.currency is not None and options.gpu_hour is None:
        raise UsageError("--currency is of --gpu-hour: give both")


def _url(target: str) -> str | None:
    """Return the URL of a running engine without secrets; None if it names a model."""
    if not is_address(target):
        return None
    return TargetServer.at(target, None, {}).url


def _refuse_restarts(options: TuneOptions, variables: tuple[Variable, ...]) -> None:
    """Refuse settings that need a restart: a running engine is not ours to restart."""
    fixed = next((each.flag for each in variables if not each.is_live), None)
    if fixed is not None:
        raise UsageError(
            f"--vary {fixed} needs a restart, and {options.target} is not ours to "
            f"start again: of a running engine only {' and '.join(LIVE_FLAGS)} can be "
            "turned. Give the model instead of the URL to start engines for it"
        )
    if options.flags:
        raise UsageError(
            f"{options.target} runs already: its flags are as they are. Leave out "
            "what follows --"
        )


def _goal(options: TuneOptions) -> Goal:
    """Return the goal, or the default that follows from the other options."""
    classes = options.fields.get("classes") or ()
    objective = bool(options.slo) or any("slo=" in each for each in classes)
    objective |= options.plan is not None  # the plan is checked later
    if options.goal is None:
        return Goal.GOODPUT if options.slo else Goal.TOKENS
    goal = Goal(options.goal)
    if goal in OF_GOOD and not objective:
        raise UsageError(
            f"--goal {goal} needs --slo: what a good request is, as "
            "--slo 'ttft_s<0.5 tpot_s<50ms'"
        )
    if goal is Goal.COST and options.gpu_hour is None:
        raise UsageError("--goal cost needs --gpu-hour: what an hour of a GPU costs")
    return goal


def _load(options: TuneOptions, goal: Goal, url: str | None) -> LoadPlan:
    """Return the load of each trial; its target is set once there is an engine."""
    given = _given(options, goal)
    fields = plan_fields(_as_load_options(options, given, goal, url))
    if "warmup_s" not in given and options.plan is None and not fields["warmup_s"]:
        length_s = fields.get("duration_s") or WARMUP_S / WARMUP_SHARE
        fields["warmup_s"] = min(WARMUP_S, WARMUP_SHARE * length_s)
    if not fields.keys() & {"rate_per_s", "concurrency", "rates", "trace", "scenario"}:
        raise UsageError(HOW_MUCH)
    target = {"run_id": "tune", "url": url or "http://localhost"}
    plan = make_plan({"model": "" if url else options.target, **fields, **target})
    if plan.measures_rate:
        raise UsageError(
            "each setting would be sent what it can bear, and none could be told from "
            "another: give --rate or --concurrency"
        )
    judged = objectives(plan)
    if goal in OF_GOOD and not (judged.slo or judged.classes):
        raise UsageError(f"--goal {goal} needs --slo: {options.plan} has none")
    return plan


def _given(options: TuneOptions, goal: Goal) -> dict[str, Any]:
    """Return the load's fields from the flags, with defaults if the demo is tuned."""
    given = {k: v for k, v in options.fields.items() if v not in {None, ()}}
    own = {
        "slo": options.slo,
        "warmup_s": options.warmup_s,
        "duration_s": options.trial_s,
    }
    given |= {name: value for name, value in own.items() if value is not None}
    ways = [name for name in ARRIVAL_FIELDS if name in given]
    other = next((name for name in ways if name != "rate_per_s"), None)
    if goal is Goal.KNEE and other is not None:
        raise UsageError(
            f"--goal knee searches for a request rate: leave out {FLAG_OF[other]}"
        )
    if options.target != DEMO or options.plan is not None or "scenario" in given:
        return given
    if not ways and goal is not Goal.KNEE:
        given["concurrency"] = DEMO_USERS
    if not {"requests", "trace_file", "like"} & given.keys():
        given.setdefault("duration_s", DEMO_TRIAL_S)
    return given


def _as_load_options(
    options: TuneOptions, given: Mapping[str, Any], goal: Goal, url: str | None
) -> LoadOptions:
    return LoadOptions(
        url=url,
        fields=given,
        plan=options.plan,
        uds=None,
        header=(),
        share=DEFAULT_SHARE,
        find_rate=goal is Goal.KNEE,
        sweep=None,
        resume=None,
        strict_client=False,
        allow_load=options.allow_load,
        save_requests=None,
        answers=None,
        answers_to=None,
        output_format="inferwatch",
        as_json=options.as_json,
        name=options.name,
        database=options.database,
        no_record=False,
    )
