"""``inferwatch plan`` with several batches: curves, and claims of whole curves."""

import re
from pathlib import Path

import pytest

from tests.inferwatch.cli.test_plan import asked, run

A100 = ("--model", "llama-3-8b", "--gpu", "A100")
PUBLISHED = "1=140,4=540,16=2000,32=3600,64=5800,128=7200,256=7800"


def test_several_batches_are_a_curve_with_its_knee_marked() -> None:
    status, text = run(*A100, "--batch", "1..256", "--context", "2K")

    plot, table = text.split("batch  TPOT")
    rows = [each.split() for each in table.splitlines() if re.match(r" +\d", each)]
    batches = [int(row[0]) for row in rows]
    marked = [row[0] for row in rows if row[-1] == "■"]
    assert status == 0
    assert plot.startswith("The knee is at 60 requests on A100 SXM 80GB")
    assert batches == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert marked == ["64"]
    assert "■ knee: 60 requests" in text
    assert plot.count("■") == 2  # of the legend, and on the curve


def test_each_gpu_and_context_has_a_curve_in_json() -> None:
    found = asked(
        *("--model", "8b", "--gpu", "A100,H100", "--batch", "1,64"),
        *("--context", "2k,8k", "--pp", "1,2"),
    )

    curves = found["curves"]
    assert len(curves) == 2 * 2 * 2
    assert {each["pipeline_parallel"] for each in curves} == {1, 2}
    assert {each["context_tokens"] for each in curves} == {2000, 8000}
    (alone,) = asked(*A100, "--batch", "64", "--context", "2k")["plans"]
    point = curves[0]["points"][1]
    assert point["tpot_floor_s"] == alone["tpot_floor_s"]
    assert point["decode_tokens_per_s_per_user"] == pytest.approx(
        1 / alone["tpot_floor_s"]
    )
    assert curves[0]["knee_requests"] == 62


@pytest.mark.parametrize("as_file", [True, False], ids=["of a file", "in words"])
def test_a_claimed_curve_that_cannot_be_is_named_as_a_whole(
    as_file: bool,
    tmp_path: Path,
) -> None:
    claim = PUBLISHED
    if as_file:
        file = tmp_path / "claim.csv"
        lines = PUBLISHED.replace(",", "\n").replace("=", ",")
        file.write_text(f"batch,tokens_per_s\n{lines}\n# of a guide\n")
        claim = str(file)

    status, text = run(*A100, "--context", "2304", "--measured-curve", claim)

    assert status == 1
    assert text.startswith("7 of 7 measured points are faster than possible on A100")
    assert text.count("✖ 1.") >= 7


def test_a_curve_that_can_be_says_how_near_it_comes() -> None:
    status, text = run(*A100, "--measured-curve", "1=100,32=1500")

    assert status == 0
    assert text.startswith("2 measured points are possible on A100")


def test_a_page_has_both_curves_and_no_script(tmp_path: Path) -> None:
    page = tmp_path / "curve.html"

    status, _ = run(*A100, "--batch", "1,16,64", "--html", str(page))

    html = page.read_text()
    assert status == 0
    assert html.count("<figure") == 2
    assert "TPOT at best" in html
    assert "<script" not in html
    assert run(*A100, "--batch", "1,16", "--html", str(page))[0] == 2  # exists


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "1,8", "--measured-tpot", "7ms"), "is of one batch"),
        (("--batch", "1,8", "--call-latency", "5us"), "is of one batch"),
        (("--batch", "1,8", "--storage-gbps", "3"), "is of one batch"),
        (("--context", "2k,8k", "--measured-curve", "1=9"), "is of one --context"),
        (("--measured-curve", "no-such-file"), "no such file"),
        (("--measured-curve", "/dev/zero"), "too large"),
        (("--measured-curve", "1=0"), "'1=0' is no batch"),
        (("--measured-curve", "1=nan"), "'1=nan' is no batch"),
        (("--measured-curve", "1=9,1=8"), "there twice"),
        (("--html", "x.html"), "is of a curve"),
        (("--batch", "1,8", "--force"), "--force is for --html"),
        (("--batch", "1,8", "--json", "--html", "-"), "the only output"),
        (("--batch", "1,8", "--prompt", "9k", "--context", "2k,32k"), "no room"),
    ],
)
def test_what_does_not_go_with_a_curve_is_refused(
    words: tuple[str, ...], said: str
) -> None:
    status, text = run(*A100, *words)

    assert status == 2
    assert said in text


def test_a_gpu_without_known_compute_has_a_knee_of_memory_alone() -> None:
    words = ("--gpu", "mine", "--peak-gbps", "2000", "--memory-gb", "80")

    status, text = run("--model", "8b", *words, "--batch", "1..128")

    assert status == 0
    assert "■ knee: 29 requests; bound by compute from: not known" in text


def test_a_model_that_does_not_fit_says_so_first_and_what_would() -> None:
    words = ("405b", "--gpu", "8xH100", "--batch", "1,8")

    status, text = run(*words)
    (curve,) = asked(*words)["curves"]
    (alone,) = asked("405b", "--gpu", "8xH100")["plans"]

    assert status == 0
    assert text.startswith("Not even 1 request fits on 8 × H100 SXM (16-bit, 4,096 tok")
    assert "It would fit with:\n  FP8 weights" in text
    assert curve["remedies"] == alone["remedies"] != []
    assert {e["decode_tokens_per_s"] for e in curve["points"]} == {None}
    assert run(*words, "--fail-if-not-fit")[0] == 1


def test_a_price_is_of_each_batch() -> None:
    words = (*A100, "--batch", "1,64", "--gpu-hour", "1.5")

    (curve,) = asked(*words)["curves"]
    (alone,) = asked(*A100, "--batch", "64", "--gpu-hour", "1.5")["plans"]

    last = curve["points"][-1]
    assert last["price_per_million"] == alone["price_per_million"]
    assert f"€{last['price_per_million']:.3f}" in run(*words, "--currency", "€")[1]
