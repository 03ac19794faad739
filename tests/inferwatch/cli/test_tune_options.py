"""What ``inferwatch tune`` makes of its flags, and what it says of wrong ones."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inferwatch.cli.main import inferwatch
from inferwatch.cli.running.tune import refuse_unwritable
from inferwatch.cli.running.tune_plan import DEMO_USERS, TuneOptions, tune_plan
from inferwatch.cli.tune import tune
from inferwatch.errors import UsageError
from inferwatch.loadgen.plan.plan import Arrivals
from inferwatch.sample import sample_file
from inferwatch.studies.answers.asking import PROMPTS
from inferwatch.studies.tune.plan import Goal, TunePlan

VARY = ("--vary", "max-num-seqs=8,16")


def options_of(*words: str) -> TuneOptions:
    """As the command reads them."""
    context = tune.make_context("tune", list(words))
    given: dict[str, Any] = dict(context.params)
    names = TuneOptions.__dataclass_fields__.keys() & given.keys()
    own = {name: given.pop(name) for name in names}
    return TuneOptions(**own, fields=given)


def planned(*words: str) -> TunePlan:
    return tune_plan(options_of(*words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which engine"),
        (("m", "--rate", "5"), "what is to vary"),
        (("m", "--vary", "max-num-seqs"), "is not a flag with values"),
        (("m", "--vary", "max-num-seq=8,16"), "did you mean --max-num-seqs"),
        (("m", *VARY, *VARY), "max-num-seqs is given twice"),
        (("m", "--vary", "max-num-seqs=8"), "leaves nothing to choose from"),
        (
            (
                "m",
                "--vary",
                f"max-num-seqs={','.join(map(str, range(1, 31)))}",
                "--vary",
                "block-size=8,16,32,64,128,256,512",
            ),
            "210 settings",
        ),
        (("m", *VARY), "say how much to send"),
        (("m", *VARY, "--rate", "5", "--concurrency", "3"), "choose one"),
        (("m", *VARY, "--rate", "5", "--goal", "goodput"), "goodput needs --slo"),
        (("m", *VARY, "--goal", "knee"), "knee needs --slo"),
        (
            ("m", *VARY, "--goal", "knee", "--slo", "ttft_s<1", "--concurrency", "3"),
            "leave out --concurrency",
        ),
        (
            ("m", *VARY, "--rate", "5", "--slo", "ttft_s<1", "--goal", "cost"),
            "cost needs --gpu-hour",
        ),
        (("m", *VARY, "--rate", "5", "--slo", "fast"), "slo"),
        (("m", *VARY, "--rate", "5", "--currency", "€"), "--currency is of --gpu-hour"),
        (("m", *VARY, "--rate", "5", "--json", "--markdown"), "give one"),
        (("m", "64", *VARY, "--rate", "5"), "'64' is not a flag of `vllm serve`"),
        (("m", *VARY, "--scenario", "burst"), "give --rate or --concurrency"),
        (
            ("http://localhost:8000", "--vary", "block-size=16,32", "--rate", "5"),
            "only max-num-seqs and max-num-batched-tokens can be turned",
        ),
        (
            ("localhost:8000", *VARY, "--rate", "5", "--", "--dtype", "half"),
            "runs already",
        ),
        (
            (
                "m",
                *VARY,
                "--rate",
                "5",
                "--",
                "--max-num-seqs",
                "9",
                "--max-num-seqs=8",
            ),
            "given twice after --",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(*words)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--list", "--show", "t1"), "give one of them"),
        (("--resume", "t1", "m"), "leave out MODEL"),
        (("--show", "t1", *VARY), "leave out MODEL"),
        (("--show", "t1"), "there is no tune t1"),
        (("--resume", "t1"), "there is no tune t1"),
        (("m", *VARY, "--rate", "5", "--html", "/nowhere/x.html"), "cannot be written"),
    ],
)
def test_recorded_tunes_have_options_of_their_own(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    record = tmp_path / "sessions.db"
    record.write_bytes(sample_file().read_bytes())

    with pytest.raises(UsageError, match=said):
        run("tune", *words, "--db", str(record))


def run(*words: str) -> None:
    CliRunner().invoke(inferwatch, words, catch_exceptions=False)


@pytest.mark.parametrize("span", ["soon", "-3", "0", "3 weeks", "1e3"])
def test_a_span_of_time_is_a_number_and_a_unit(span: str) -> None:
    done = CliRunner().invoke(inferwatch, ["tune", "m", "--budget", span])

    assert done.exit_code == 2
    assert "span of time" in done.output


def test_spans_are_seconds_minutes_or_hours() -> None:
    found = options_of("m", "--trial", "45", "--budget", "1.5h", "--warmup", "2min")

    assert (found.trial_s, found.budget_s, found.warmup_s) == (45, 5400, 120)


def test_a_plan_holds_all_that_was_asked_for() -> None:
    plan = planned(
        *("m", "--vary", "--max_num_seqs=8,16", "--vary", "dtype=default,half"),
        *("--rate", "12", "--slo", "ttft_s<0.5", "--trial", "20s", "--budget", "2h"),
        *("--repeats", "3", "--seed", "7", "--answers", "20", "--name", "nightly"),
        *("--gpu-hour", "2.5", "--currency", "€", "--output-tokens", "64"),
        *("--", "--max-num-seqs", "64", "--block-size", "16"),
    )

    assert plan.model == "m"
    assert plan.url is None
    assert plan.vary == (("max-num-seqs", ("8", "16")), ("dtype", ("default", "half")))
    assert plan.present == (("dtype", "default"), ("max-num-seqs", "64"))
    assert plan.engine_flags == ("--block-size", "16")
    assert plan.goal is Goal.GOODPUT
    assert (plan.repeats, plan.seed, plan.answers) == (3, 7, 20)
    assert (plan.budget_s, plan.gpu_hour, plan.currency) == (7200, 2.5, "€")
    assert plan.name == "nightly"
    assert (plan.load.rate_per_s, plan.load.duration_s) == (12, 20)
    assert plan.load.warmup_s == 5
    assert plan.load.seed == 7
    assert plan.load.output_tokens.mean == 64
    assert plan.load.slo == "ttft_s<0.5"


@pytest.mark.parametrize(
    ("words", "prompts"),
    [
        (("--vary", "max-num-seqs=8,16"), 0),
        (("--vary", "kv-cache-dtype=auto,fp8"), PROMPTS),
        (("--vary", "kv-cache-dtype=auto,fp8", "--answers", "0"), 0),
        (("--vary", "max-num-seqs=8,16", "--answers", "9"), 9),
    ],
)
def test_answers_are_compared_where_a_flag_may_change_them(
    words: tuple[str, ...], prompts: int
) -> None:
    assert planned("m", *words, "--rate", "5").answers == prompts


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        (("--rate", "5"), Goal.TOKENS),
        (("--rate", "5", "--slo", "ttft_s<1"), Goal.GOODPUT),
        (("--concurrency", "5", "--goal", "latency"), Goal.LATENCY),
        (("--goal", "knee", "--slo", "ttft_s<1"), Goal.KNEE),
    ],
)
def test_the_goal_follows_from_what_is_given(
    words: tuple[str, ...], goal: Goal
) -> None:
    assert planned("m", *VARY, *words).goal is goal


def test_a_demo_needs_no_more_than_what_to_vary() -> None:
    plan = planned("demo", "--vary", "max-num-seqs=8,16,32")

    assert plan.goal is Goal.TOKENS
    assert plan.load.arrivals is Arrivals.CLOSED
    assert plan.load.concurrency == DEMO_USERS
    assert plan.load.duration_s == 8
    assert plan.load.warmup_s == 2


def test_an_address_is_attached_to_and_its_password_is_not_kept() -> None:
    plan = planned("http://me:secret@gpu1:8000/v1", *VARY, "--rate", "5")

    assert plan.url == "http://gpu1:8000"
    assert plan.model == ""
    assert "secret" not in repr(plan)
    assert (
        planned("localhost:8000", *VARY, "--rate", "5").url == "http://localhost:8000"
    )


def test_a_recorded_session_is_sent_again(tmp_path: Path) -> None:
    record = tmp_path / "sessions.db"
    record.write_bytes(sample_file().read_bytes())

    plan = planned("m", *VARY, "--like", "last", "--db", str(record))

    assert plan.load.arrivals is Arrivals.TRACE
    assert len(plan.load.trace) > 10
    assert plan.like == plan.load.trace_of


def test_help_teaches_with_examples_and_has_no_flag_twice() -> None:
    done = CliRunner().invoke(inferwatch, ["tune", "--help"])

    assert "inferwatch tune demo --vary max-num-seqs=8,16,32" in done.output
    flags = [
        each
        for option in tune.get_params(click.Context(tune))
        for each in option.opts
        if each.startswith("--")
    ]
    assert {"--vary", "--scenario", "--like", "--resume"} <= {*flags}
    assert len(flags) == len({*flags})
    assert "--duration" not in flags


@pytest.mark.parametrize("model", ["s3://bucket/model", "hf://org/model"])
def test_a_model_may_be_a_url(model: str) -> None:
    plan = planned(model, *VARY, "--rate", "5")

    assert (plan.model, plan.url) == (model, None)


def test_a_page_is_overwritten_only_when_asked(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.touch()

    refuse_unwritable(page, force=True)
    with pytest.raises(UsageError, match="add --force"):
        refuse_unwritable(page, force=False)
    with pytest.raises(UsageError, match="--force is for --html"):
        refuse_unwritable(None, force=True)
