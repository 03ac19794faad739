"""A result as text, Markdown, JSON and a page."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.printing.canvas import PlotStyle
from inferwatch.printing.destination import Destination
from inferwatch.printing.page import write_page
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.as_json import tune_json
from inferwatch.studies.tune.result.printed import tune_markdown, tune_text
from inferwatch.studies.tune.result.printed import tune_page as page
from inferwatch.studies.tune.result.tune_result import TuneResult, result_of
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from tests.inferwatch.printing.export.parsed_page import (
    CHROMIUM,
    Page,
    shown_by_browser,
)
from tests.inferwatch.studies.tune.scripted_trials import (
    measured,
    not_measured,
    numbered,
    seqs,
    space_of_seqs,
)
from tests.inferwatch.studies.tune.test_result import latency, told

EVIL = 'x"><script>alert(1)</script>\x1b[31m|`*_'
BUSY = "other work took 12% of the host's cores"
TOKENS = {2: 210, 4: 400, 8: 800, 16: 1200, 32: 1500, 48: 1510, 64: 1400}
TTFTS = {2: 9.0, 4: 5.0, 8: 1.5, 16: 0.3, 32: 0.412, 48: 0.45, 64: 0.6}


def plan_of(**asked: Any) -> TunePlan:
    load = LoadPlan(
        run_id="r",
        url="http://x",
        model="m",
        rate_per_s=20.0,
        slo="ttft_s<0.5 tpot_s<0.05",
    )
    known: dict[str, Any] = {
        "tune_id": "t1",
        "model": "Qwen/Qwen3-8B",
        "vary": (("max-num-seqs", tuple(map(str, TOKENS))),),
        "load": load,
        "engine_flags": ("--served-model-name", "my model"),
        "gpu_hour": 2.0,
    }
    return TunePlan(**(known | asked))


def trials_of(space: Space, repeats: int = 3) -> tuple[Trial, ...]:
    """Of that space those that have a number above, in rounds."""
    chance, found = random.Random(1), []
    for _ in range(repeats):
        for point in space.points:
            value = int(point.value("max-num-seqs") or 0)
            if value not in TOKENS:
                continue
            tokens = TOKENS[value] * chance.gauss(1, 0.01)
            trial = measured(point, tokens, *([BUSY] if value == 16 else []))
            found.append(
                told(
                    trial,
                    goodput_per_s=tokens / 128,
                    knee_per_s=tokens / 100,
                    cost=600 / tokens,
                    good_share=0.97,
                    latencies={
                        "ttft_s": latency(TTFTS[value] * chance.gauss(1, 0.05)),
                        "tpot_s": latency(0.01 + value * 0.0007),
                    },
                    bound_share={"seqs": 0.41, "nothing": 0.59},
                    memory_bytes=2_000_000_000,
                )
            )
    return numbered(found)


def tuned(
    goal: Goal = Goal.GOODPUT, repeats: int = 3, **asked: Any
) -> tuple[TuneResult, TunePlan, tuple[Trial, ...]]:
    space = space_of_seqs(*TOKENS, 128, 256, present=8)
    odd = [
        not_measured(seqs(128), TrialOutcome.NOT_STARTED, "CUDA out of memory"),
        not_measured(seqs(256), TrialOutcome.LEFT_OUT, "the model says: it cannot win"),
    ]
    trials = numbered([*trials_of(space, repeats), *odd])
    plan = plan_of(goal=goal, **asked)
    return result_of(space, SearchRules(goal=goal), trials, plan), plan, trials


def wide(repeats: int = 2) -> tuple[TuneResult, TunePlan]:
    """Two flags with long values."""
    variables = [
        Variable(flag="max-num-seqs", values=("8", "32")),
        Variable(flag="compilation-config", values=('{"mode": 3, "cudagraph": "x"}',)),
    ]
    flags = [(each.flag, each.values[0]) for each in variables]
    space = space_of(variables, Point(flags=tuple(flags)))
    vary = tuple((each.flag, each.values) for each in variables)
    plan = plan_of(vary=vary)
    trials = trials_of(space, repeats)
    return result_of(space, SearchRules(goal=Goal.GOODPUT), trials, plan), plan


# Text.


def test_the_text_says_it_in_a_sentence_first() -> None:
    result, plan, _ = tuned()

    first = tune_text(result, plan).split("\n\n")[0]

    assert " ".join(first.split()) == f"{result.verdict}."
    assert result.verdict.startswith(
        "Take max-num-seqs 48: better than the present (8) by "
    )


def test_the_table_has_each_setting_with_its_interval() -> None:
    result, plan, _ = tuned()

    lines = tune_text(result, plan).split("\n")
    rows = {
        line[5:9].strip(): line
        for line in lines
        if line[:1].isalpha() and line[1:2] == " "
    }

    assert "     setting  good/s  95% interval   vs present  tokens/s  TTFT p99" in (
        "\n".join(lines)
    )
    assert rows["48"].startswith("A ★  48 ")
    assert rows["32"].startswith("B ≈  32 ")
    assert rows["8"].startswith("e ●  8 ")
    assert rows["8"].split()[5] == "present"
    assert rows["2"].split()[0] == "g"
    assert {row.split()[-1] for row in rows.values()} == {"3"}


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal(goal: Goal, width: int) -> None:
    result, plan, _ = tuned(goal)

    lines = tune_text(result, plan, width).split("\n")

    assert max(map(len, lines)) <= min(width, 160)


def test_a_wider_terminal_shows_more_columns() -> None:
    result, plan, _ = tuned()

    narrow, broad = (tune_text(result, plan, width) for width in (80, 120))

    assert "TPOT p99 ms" not in narrow
    assert "TPOT p99 ms" in broad


def test_a_setting_that_takes_the_room_has_a_line_of_its_own() -> None:
    result, plan = wide()

    lines = tune_text(result, plan).split("\n")

    at = next(n for n, line in enumerate(lines) if line.startswith("A ★  32 · {"))
    assert lines[at].endswith('"x"}')
    assert lines[at + 1].startswith(" " * 5)
    assert "+" in lines[at + 1]
    assert max(map(len, lines)) <= 80


def test_what_has_no_number_stands_there_with_its_cause() -> None:
    result, plan, _ = tuned()

    text = tune_text(result, plan)

    assert "\n128: did not start: CUDA out of memory\n" in text
    assert "\n256: left out: the model says: it cannot win\n" in text
    assert f"\n! 16: {BUSY}\n" in text


def test_doubts_of_a_kind_are_one_line_a_setting() -> None:
    space = space_of_seqs(8, 16, present=8)
    slow = [
        told(each, doubts=(f"the client was too slow: {n}% of reads were merged",))
        for n, each in enumerate(trials_of(space), 1)
    ]
    plan = plan_of()
    result = result_of(space, SearchRules(goal=Goal.GOODPUT), slow, plan)

    text = tune_text(result, plan)

    assert result.verdict.endswith("; but doubtful: the client was too slow")
    assert "! 8: the client was too slow: 1% of reads were merged (and 2 more" in text
    assert text.count("! 8") == 1
    assert len(tune_json(result, plan)["settings"][0]["doubts"]) == 3


def test_what_was_not_reached_is_said_together() -> None:
    space = space_of_seqs(8, 16, 32, 48, present=8)
    trials = trials_of(space_of_seqs(8, 16, present=8))
    plan = plan_of()
    result = result_of(space, SearchRules(goal=Goal.GOODPUT), trials, plan)

    assert "\nnot measured: 32, 48\n" in tune_text(result, plan)


def test_the_commands_are_what_a_shell_understands() -> None:
    result, plan, _ = tuned()

    text = tune_text(result, plan)

    assert text.endswith(
        "To serve with the setting that measured best:\n"
        "  inferwatch serve Qwen/Qwen3-8B -- --served-model-name 'my model' \\\n"
        "    --max-num-seqs=48\n"
        "  vllm serve Qwen/Qwen3-8B --served-model-name 'my model' --max-num-seqs=48"
    )


def test_a_plot_for_each_latency_that_was_asked_for() -> None:
    result, plan, _ = tuned()

    text = tune_text(result, plan)

    assert text.count("output tokens/s against TTFT p99") == 1
    assert text.count("output tokens/s against TPOT p99") == 1


def test_a_tune_that_has_measured_nothing_has_a_text() -> None:
    plan = plan_of()
    space = space_of_seqs(8, 16, present=8)
    result = result_of(space, SearchRules(goal=Goal.GOODPUT), [], plan)

    assert tune_text(result, plan) == (
        "nothing has been measured yet.\n\nnot measured: 8, 16"
    )


def test_colour_adds_nothing_that_is_not_said() -> None:
    result, plan, _ = tuned()

    def painted(text: str, style: str) -> str:
        return text if style is PlotStyle.NONE else f"<{text}>"

    coloured = tune_text(result, plan, paint=painted)

    assert "<" in coloured
    bare = coloured.replace("<", "").replace(">", "")
    plain = tune_text(result, plan).replace("<", "").replace(">", "")
    assert bare.split() == plain.split()


# Markdown.


def test_the_markdown_has_a_table_and_folded_plots() -> None:
    result, plan, _ = tuned()

    text = tune_markdown(result, plan)

    assert text.startswith(
        "### inferwatch tune: Qwen/Qwen3-8B\n\n**Take max-num-seqs 48: "
    )
    assert "| A ★ | 48 | 11.8 | " in text
    assert text.count("<details><summary>Output tokens/s against T") == 2
    assert "```sh\ninferwatch serve Qwen/Qwen3-8B -- " in text
    assert "- 128: did not start: CUDA out of memory" in text


# JSON.


def test_the_json_tells_everything_with_its_unit() -> None:
    result, plan, trials = tuned()

    found = json.loads(json.dumps(tune_json(result, plan, trials)))

    assert found["best"] == {"max-num-seqs": "48"}
    assert found["goal"]["score"] == "good_requests_per_s"
    settings = {each["flags"]["max-num-seqs"]: each for each in found["settings"]}
    assert settings["48"]["is_best"]
    assert settings["32"]["like_best"]
    assert settings["8"]["is_present"]
    low, high = settings["48"]["ratio_to_present_ci95"]
    assert 1.8 < low < high < 2.0
    assert settings["128"]["outcome"] == "did not start"
    assert settings["128"]["score"] is None
    assert settings["16"]["doubts"] == [BUSY]
    assert len(found["trials"]) == len(trials)
    assert found["trials"][0]["numbers"]["ttft_s"]["p99"] > 0
    assert found["trials"][-1]["numbers"] is None


# The page.


def test_the_page_is_whole_and_asks_nobody() -> None:
    result, plan, trials = tuned()

    text = "\n".join(page(result, plan, trials))
    found = Page(text)

    assert not found.open
    assert found.tags["script"] == found.tags["img"] == 0
    addresses = {value for name, value in found.attributes if name in {"src", "href"}}
    assert addresses == {"data:,"}
    assert found.tags["svg"] == 2
    assert result.verdict in found.text.replace("\n", "")
    assert "CUDA out of memory" in found.text
    assert BUSY in found.text
    assert text.count('class="mark best leads"') == 2


def test_each_mark_of_the_page_tells_what_it_is() -> None:
    result, plan, trials = tuned()

    found = Page("\n".join(page(result, plan, trials)))

    titles = [value for name, value in found.attributes if name == "title"]
    best = next(each for each in titles if each.endswith("the best"))
    assert best.startswith("max-num-seqs 48, 1,5")
    assert " /s, 4" in best
    assert " ms (" in best


def test_text_of_others_is_harmless_everywhere(tmp_path: Path) -> None:
    space = space_of_seqs(*TOKENS, 128, present=8)
    odd = not_measured(seqs(128), TrialOutcome.FAILED, EVIL)
    evil = [told(e, doubts=(EVIL,)) for e in trials_of(space)]
    trials = numbered([*evil, odd])
    plan = plan_of(name=EVIL, model=EVIL, engine_flags=(EVIL,))
    result = result_of(space, SearchRules(goal=Goal.GOODPUT), trials, plan)

    text, markdown = tune_text(result, plan), tune_markdown(result, plan)
    found = Page("\n".join(page(result, plan, trials)))

    assert "\x1b" not in text + markdown + found.text
    assert "<script>" not in markdown.replace(f"```sh{_fence(markdown)}", "")
    assert found.tags["script"] == 0
    assert not found.open


def _fence(markdown: str) -> str:
    """What is code in it: a browser shows that as it is."""
    return markdown.split("```sh")[1].split("```", maxsplit=1)[0]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
@pytest.mark.process
def test_a_browser_shows_the_page_without_a_complaint(tmp_path: Path) -> None:
    result, plan, trials = tuned()
    path = tmp_path / "tune.html"
    write_page(page(result, plan, trials), Destination(path=path))

    shown = shown_by_browser(path, tmp_path)

    assert "Throughput against p99" in shown.text
