"""Rules are said by flags; what cannot be is refused before anything is watched."""

import click
import pytest
from click.testing import CliRunner

from inferwatch.cli.attach import attach
from inferwatch.cli.options import WatchOptions, watch_options
from inferwatch.live.alarms.options import AlarmOptions


def said(*flags: str) -> AlarmOptions:
    """What a watching command is given."""
    given: list[AlarmOptions] = []

    @watch_options
    def command(options: WatchOptions) -> None:
        given.append(options.alarms)

    done = CliRunner().invoke(click.command()(command), flags)
    assert done.exit_code == 0, done.output
    return given[0]


def refused(*flags: str) -> str:
    def command(options: WatchOptions) -> None:
        raise AssertionError(options)

    done = CliRunner().invoke(click.command()(watch_options(command)), flags)
    assert done.exit_code == 2
    return " ".join(done.output.replace("│", " ").split())


def test_without_a_flag_nothing_is_looked_at() -> None:
    assert said() == AlarmOptions()
    assert not AlarmOptions().any


def test_flags_say_what_is_kept_recorded_and_told() -> None:
    found = said(
        *("--record-on", "stall|p99(ttft_s)>2", "--keep", "10min"),
        *("--keep-bytes", "1GB", "--record-after", "90", "--alert", "lost"),
        *("--on-alert", "sh -c 'cat >> \"a b\"'", "--alert-every", "1h"),
    )

    assert found == AlarmOptions(
        record_on="stall|p99(ttft_s)>2",
        alert="lost",
        keep_s=600.0,
        keep_bytes=10**9,
        record_after_s=90.0,
        on_alert=("sh", "-c", 'cat >> "a b"'),
        alert_every_s=3600.0,
    )
    assert found.any


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--record-on", "slow"), "'slow' is not a rule: write slo, preemption"),
        (("--alert", "p99(ttft_s)>x"), "'x' is not a number"),
        (("--record-on", "stall", "--no-record"), "--no-record does not: choose"),
        (("--keep", "10min"), "--keep is for rules: give --record-on with it"),
        (("--alert", "lost", "--keep", "1min"), "give --record-on with it"),
        (("--on-alert", "true"), "give --record-on or --alert with it"),
        (("--alert", "lost", "--on-alert", "no-such-thing x"), "no program"),
        (("--alert", "lost", "--on-alert", "'unbalanced"), "No closing quotation"),
        (("--alert", "lost", "--on-alert", " "), "it names no program"),
        (("--record-on", "stall", "--keep", "0"), "not a span up to a day"),
        (("--record-on", "stall", "--keep", "9d"), "not a span up to a day"),
        (("--record-on", "stall", "--keep-bytes", "lots"), "not a size"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: tuple[str, ...], why: str) -> None:
    assert why in refused(*flags)


def test_one_look_has_no_rules() -> None:
    done = CliRunner().invoke(attach, ["localhost:1", "--once", "--alert", "lost"])

    assert done.exit_code == 2
    assert "rules need a watch that goes on" in done.output
