"""How GPUs are read is said by flags, and reaches whoever reads them."""

import click
import pytest
from click.testing import CliRunner

from collectors.contract.clock import SessionClock
from collectors.hardware.gpu_source import Gpm, GpuOptions
from inferwatch.cli.options import WatchOptions, watch_options
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model


def said(*flags: str) -> GpuOptions:
    """What a watching command is given."""
    given: list[GpuOptions] = []

    @watch_options
    def command(options: WatchOptions) -> None:
        given.append(options.gpus)

    done = CliRunner().invoke(click.command()(command), flags)
    assert done.exit_code == 0, done.output
    return given[0]


def refused(*flags: str) -> str:
    def command(options: WatchOptions) -> None:
        raise AssertionError(options)

    done = CliRunner().invoke(click.command()(watch_options(command)), flags)
    assert done.exit_code == 2
    return done.output


def test_without_a_flag_gpus_are_read_once_a_second() -> None:
    assert said() == GpuOptions()
    assert GpuOptions().rate_hz == 1


def test_flags_say_which_gpus_and_how() -> None:
    flags = [
        "--gpus",
        "0,GPU-ab",
        "--peak-gbps",
        "4800",
        "--peak-tflops",
        "989",
        "--gpm",
        "off",
        "--gpu-rate",
        "5",
    ]

    assert said(*flags) == GpuOptions(
        gpus=("0", "GPU-ab"), peak_gbps=4800, peak_tflops=989, gpm=Gpm.OFF, rate_hz=5
    )


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpu-rate", "50"),
        ("--gpu-rate", "0"),
        ("--peak-gbps", "0"),
        ("--peak-gbps", "nan"),
        ("--peak-tflops", "0"),
        ("--gpm", "perhaps"),
    ],
)
def test_what_cannot_be_is_refused(flags: tuple[str, str]) -> None:
    assert flags[0] in refused(*flags)


async def test_a_watch_hands_them_to_who_reads_gpus() -> None:
    watch = AttachedSession(SessionClock(), Pipeline(Model()), [])
    options = GpuOptions(gpus=("none",), rate_hz=2)
    watch.read_gpus(options)

    assert watch._session.gpus.options is options
