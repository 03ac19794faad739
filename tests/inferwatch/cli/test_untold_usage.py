"""A server that counts no tokens: nothing anywhere says how many there were.

Its chunks come every 20 ms, so any TPOT of less, and any count, is made up.
"""

import json
import re
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess
from typing import Any

import pytest

pytestmark = pytest.mark.process

Here = Callable[..., CompletedProcess[str]]
RUN = (
    *("--rate", "20", "--duration", "1", "--warmup", "0", "--output-tokens", "8"),
    *("--model", "ttft=0.02,itl=0.02,variant=no_usage", "--slo", "tpot_s<10ms"),
)
COUNTED = re.compile(
    r"tpot|output_tokens|output_per_s|good(put)?_per_s|joules_per|per_m"
)
"""Names of numbers that take a count of output tokens."""
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
MADE_UP = re.compile(r"\b0(\.0+)? (output )?tok(ens)?\b|-100%|[-−]100 ?%")


def counted(told: object, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers under such a name, wherever they stand."""
    if isinstance(told, dict):
        for key, value in told.items():
            yield from counted(value, f"{name}.{key}")
    elif isinstance(told, list):
        for value in told:
            yield from counted(value, name)
    elif isinstance(told, int | float) and not isinstance(told, bool):
        leaf = name.rsplit(".", 1)[-1]
        if COUNTED.search(name) and leaf not in {"n", "tpot_n"}:
            yield name, told


def assert_uncounted(told: object) -> None:
    """The plan says what was asked for; nothing says what came."""
    found = [
        each
        for each in counted(told)
        if not re.search(r"\.plan\.|configuration|\.slo|objective|\.better", each[0])
    ]
    assert found == []


def test_an_slo_on_tpot_is_not_met_where_none_can_be_told(
    load: Here,
) -> None:
    done = load(*RUN, "--json")

    summary: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 1
    assert summary["requests"]["succeeded"] == summary["requests"]["sent"] > 0
    assert summary["itl_s"]["p50"] > 0.015
    assert_uncounted(summary)


@pytest.mark.soak
def test_a_search_for_a_rate_finds_none(load: Here) -> None:
    search = ("--find-rate", "--duration", "2", "--json")

    done = load(*RUN[4:], *search)

    assert done.returncode != 0
    assert_uncounted(json.loads(done.stdout) if done.stdout.strip() else {})


@pytest.mark.soak
def test_no_report_has_a_count(here: Here, load: Here, tmp_path: Any) -> None:
    assert load(*RUN, "--name", "before").returncode == 1
    assert load(*RUN, "--name", "after").returncode == 1

    slo = ("--slo", "tpot_s<10ms")
    gate = ("--fail-if", "client.output_tokens_per_s < -5%", "--inconclusive-fails")
    assert here("compare", "s1", "s2", *slo, *gate).returncode == 4
    for words in (
        ("replay", "s1", "--headless"),
        ("compare", "s1", "s2", *slo),
        ("why", "s1"),
        ("sessions",),
    ):
        as_text, as_json = here(*words), here(*words, "--json")
        assert as_text.returncode in {0, 1}, as_text.stderr
        assert not MADE_UP.search(as_text.stdout), as_text.stdout
        assert_uncounted(json.loads(as_json.stdout))
    for form, file in (("jsonl", "x.jsonl"), ("html", "x.html")):
        out = tmp_path / file
        assert here("export", "s1", "--format", form, "-o", str(out)).returncode == 0
        assert not MADE_UP.search(STYLE.sub("", out.read_text("utf-8")))
    for line in (tmp_path / "x.jsonl").read_text("utf-8").splitlines():
        assert_uncounted(json.loads(line))
