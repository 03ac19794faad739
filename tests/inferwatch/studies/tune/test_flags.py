"""What people may type to vary a flag, and what they are told when they may not."""

import pytest

from inferwatch.errors import UsageError
from inferwatch.studies.tune.flags import (
    KnownFlags,
    flags_in,
    known_flags,
    read_variable,
    read_variables,
    split_present,
)
from inferwatch.studies.tune.space import Point, Variable

KNOWN = KnownFlags(
    names=frozenset(
        {
            "max-num-seqs",
            "max-num-batched-tokens",
            "enable-prefix-caching",
            "speculative-config",
            "block-size",
            "dtype",
            "compilation-config",
        }
    ),
    switches=frozenset({"enable-prefix-caching"}),
    whole=frozenset({"max-num-seqs", "block-size"}),
)


@pytest.mark.parametrize(
    "typed",
    [
        "max-num-seqs=8,16",
        "--max-num-seqs=8,16",
        "max_num_seqs=8,16",
        "--max_num_seqs=8, 16",
    ],
)
def test_a_flag_may_have_dashes_or_none(typed: str) -> None:
    found = read_variable(typed, KNOWN)

    assert found == Variable(flag="max-num-seqs", values=("8", "16"))


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("max-num-batched-tokens=2k,2K", ("2000", "2048")),
        ("enable-prefix-caching=on,off", ("on", "off")),
        ("enable-prefix-caching=True,no", ("on", "off")),
        ("no-enable-prefix-caching=on,off", ("off", "on")),
        ("dtype=bfloat16,default", ("bfloat16", "default")),
        (
            'speculative-config=default,{"method":"ngram","num":[1,2]}',
            ("default", '{"method":"ngram","num":[1,2]}'),
        ),
        ("compilation-config.mode=0,3", ("0", "3")),
    ],
)
def test_values_are_those_that_vllm_takes(typed: str, values: tuple[str, ...]) -> None:
    assert read_variable(typed, KNOWN).values == values


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("max-num-seqs", "is not a flag with values: --vary FLAG=VALUE,VALUE names"),
        ("=8,16", "is not a flag with values"),
        ("max-num-seqs=", "has an empty value"),
        ("max-num-seqs=8,,16", "has an empty value"),
        ("max-num-seqs=8,8", "has 8 twice"),
        ("max-num-batched-tokens=2048,2K", "has 2048 twice"),
        ("max-num-seqs=8,many", "'many' is not a whole number"),
        ("max-num-seqs=0,8", "'0' is not a whole number"),
        ("max-num-seqs=default,8", "'default' is not a whole number"),
        ("enable-prefix-caching=on,maybe", "'maybe' is neither on nor off"),
        ("max-num-seq=8,16", "has no --max-num-seq; did you mean --max-num-seqs?"),
        ("colour=red", "`vllm serve` has no --colour"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(typed: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_variable(typed, KNOWN)

    assert told in str(refused.value)


def test_nothing_to_vary_and_one_flag_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="what is to vary"):
        read_variables([], KNOWN)
    with pytest.raises(UsageError, match="max-num-seqs is given twice"):
        read_variables(["max-num-seqs=8", "max_num_seqs=16"], KNOWN)


def test_without_vllm_any_flag_may_vary() -> None:
    assert read_variable("colour=red", KnownFlags()).values == ("red",)


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-num-seqs", "64", "--dtype", "half"),
        ("--dtype", "half", "--max_num_seqs=64"),
    ],
)
def test_a_varied_flag_after_the_dashes_is_the_present(flags: tuple[str, ...]) -> None:
    varied = read_variables(["max-num-seqs=8,16"], KNOWN)

    rest, present = split_present(flags, varied, KNOWN)

    assert rest == ("--dtype", "half")
    assert present == (("max-num-seqs", "64"),)


@pytest.mark.parametrize(
    ("word", "value"),
    [("--enable-prefix-caching", "on"), ("--no-enable-prefix-caching", "off")],
)
def test_a_switch_after_the_dashes_has_no_value(word: str, value: str) -> None:
    varied = read_variables(["enable-prefix-caching=on,off"], KNOWN)

    rest, present = split_present((word, "--dtype", "half"), varied, KNOWN)

    assert rest == ("--dtype", "half")
    assert present == (("enable-prefix-caching", value),)


def test_the_present_cannot_be_given_twice() -> None:
    varied = read_variables(["max-num-seqs=8,16"], KNOWN)

    with pytest.raises(UsageError, match="given twice after --"):
        split_present(("--max-num-seqs=8", "--max-num-seqs=9"), varied, KNOWN)


def test_a_flag_at_its_default_is_not_written() -> None:
    point = Point(flags=(("dtype", "default"), ("max-num-seqs", "8")))

    assert point.command_flags == ("--max-num-seqs=8",)


def test_too_few_flags_in_a_source_are_not_believed() -> None:
    assert flags_in(['parser.add_argument("--port")']) == KnownFlags()


def test_the_flags_of_the_vllm_here_are_found_without_importing_it() -> None:
    known = known_flags()

    assert {"max-num-seqs", "api-server-count", "port"} <= known.names
    assert "enable-prefix-caching" in known.switches
    assert "block-size" in known.whole
    assert "max-num-seqs" in known.whole
