"""How an engine's start is printed: as JSON, and in a line."""

from collectors.contract.readings import Stage
from inferwatch.metrics.steps.startup import StageTime, Startup
from inferwatch.printing.summary.startup import startup_lines, startup_row

STARTUP = Startup(
    duration_s=60.0,
    stages=(
        StageTime(stage=Stage.LOAD_WEIGHTS, duration_s=20.0, bytes_per_s=8e8),
        StageTime(stage=Stage.COMPILE, duration_s=19.0, worker=1, cached=False),
        StageTime(stage=Stage.KV, duration_s=0.1),
    ),
)


def test_the_line_names_what_took_long() -> None:
    row = startup_row(STARTUP)
    assert row is not None

    (line,) = startup_lines({"startup": row})

    assert " ".join(line.split()) == (
        "start-up 60.0 s, load weights 20.0 s (0.80 GB/s), compile 19.0 s (not cached)"
    )
    assert row["stages"][1]["worker"] == 1


def test_without_a_start_nothing_is_printed() -> None:
    assert startup_lines({"startup": startup_row(None)}) == []
