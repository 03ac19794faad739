"""The words of --slo."""

import pytest

from inferwatch.errors import UsageError
from inferwatch.metrics.requests.slo import Limit, Slo, parse_slo


@pytest.mark.parametrize(
    "text",
    [
        "ttft_s<0.5 tpot_s<0.05",
        "ttft_s < 500ms, tpot_s<50 ms",
        "ttft_s<.5s tpot_s<5e-2",
    ],
)
def test_limits_are_seconds_however_they_are_written(text: str) -> None:
    limits = (
        Limit(metric="ttft_s", below_s=0.5),
        Limit(metric="tpot_s", below_s=0.05),
    )
    assert parse_slo(text.replace(" ms", "ms")) == Slo(limits)


def test_it_reads_what_it_writes() -> None:
    slo = parse_slo("ttft_s<=0.5 itl_s<80ms")

    assert str(slo) == "ttft_s<=0.5 itl_s<0.08"
    assert parse_slo(str(slo)) == slo


def test_below_is_not_equal() -> None:
    below, upto = parse_slo("ttft_s<0.5 e2el_s<=0.5").limits

    assert not below.holds(0.5)
    assert upto.holds(0.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tfft_s<0.5", "no metric 'tfft_s'"),
        ("tttf<0.5", "no metric 'tttf'"),
        ("ttft_s>0.5", "cannot read 'ttft_s>0.5'"),
        ("ttft_s<0.5mm", "cannot read 'ttft_s<0.5mm'"),
        ("ttft_s<1e", "'1e' is not a number"),
        ("ttft_s<0", "must be a number above 0"),
        ("ttft_s<1e999", "must be a number above 0"),
        ("ttft_s<1 ttft_s<2", "ttft_s is given twice"),
        ("  ", "no limit given"),
    ],
)
def test_what_makes_no_sense_is_explained(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_slo(text)

    assert said in str(error.value)
    assert all(metric in str(error.value) for metric in ("ttft_s", "tpot_s", "e2el_s"))
