"""A recorded session judged by other objectives, and paid at other prices."""

import json
from pathlib import Path
from shutil import copyfile

import pytest
from click.testing import CliRunner

from collectors.contract.readings import Prices, WatchedSlo
from inferwatch.cli.main import inferwatch
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.replay_state import ReplayOverrides
from inferwatch.record.replay.seekable_session import SeekableSession
from inferwatch.record.sessions.sessions import find
from inferwatch.sample import sample_file

LOOSE, TIGHT = "ttft_s<100", "ttft_s<1ms"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return Path(copyfile(sample_file(), tmp_path / "sample.db"))


def test_wherever_one_seeks_the_choice_holds(record: Path) -> None:
    """With checkpoints of its own, made by the choice, and not kept."""
    chosen = ReplayOverrides(
        slo=WatchedSlo(t_ns=0, slo=TIGHT), prices=Prices(t_ns=0, gpu_hour=1.0)
    )
    row = find(record, "last")
    builder = CheckpointBuilder(record, row, chosen)
    builder.build()
    before = {each.name for each in record.parent.iterdir()}

    folded = SeekableSession(record, row, record.parent / "none", chosen)
    sought = SeekableSession(record, row, builder.path, chosen)
    for share in (1.0, 0.5):
        t_ns = int(row.duration_ns * share)
        for each in (folded, sought):
            each.seek(t_ns, lambda: False)
        shown, same = (
            each.snapshot(SnapshotQuery(Window.SESSION, requests=False, client=False))
            for each in (sought, folded)
        )
        assert shown.slo == same.slo
        assert shown.spending == same.spending
        assert shown.slo is not None
        assert shown.slo.slo == "ttft_s<0.001"
        assert shown.slo.judged == shown.slo.missed["ttft_s"] > 0  # type: ignore[index]
        assert shown.spending is not None
        assert shown.spending.per_hour == 1.0
    folded.close()
    sought.close()
    builder.close()

    assert {each.name for each in record.parent.iterdir()} == before
    assert not builder.path.exists()


@pytest.mark.parametrize(("slo", "status"), [(LOOSE, 0), (TIGHT, 1)])
def test_the_exit_status_says_whether_it_was_met(
    record: Path, slo: str, status: int
) -> None:
    words = ["replay", str(record), "--json", "--slo", slo, "--slo-target", "0.99"]

    done = CliRunner().invoke(inferwatch, words, standalone_mode=False)

    told = json.loads(done.output)
    assert done.return_value == status
    assert told["slo"]["target"] == 0.99
    assert told["slo"]["met"] is (status == 0)
    ended = sum(told["requests"][how] for how in ("finished", "failed", "aborted"))
    assert told["slo"]["judged"] + told["slo"]["undetermined"] == ended


def test_a_record_without_objectives_is_not_judged(record: Path) -> None:
    done = CliRunner().invoke(
        inferwatch, ["replay", str(record), "--json"], standalone_mode=False
    )

    assert (done.return_value, json.loads(done.output)["slo"]) == (0, None)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--slo-target", "0.9"], "give both"),
        (["--slo", "ttft_s<1; target=0.9", "--slo-target", "0.8"], "give one"),
        (["--gpu-hour", "2", "--kwh", "0.3"], "give one"),
        (["--currency", "€"], "--gpu-hour or --kwh"),
        (["--slo", "speed<1"], "no metric 'speed'"),
        (["--slo", "ttft_s<1", "--slo-target", "1"], "not in the range"),
        (["--gpu-hour", "0"], "not in the range"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    record: Path, words: list[str], why: str
) -> None:
    done = CliRunner().invoke(
        inferwatch, ["replay", str(record), *words], standalone_mode=False
    )

    assert done.exception is not None
    assert why in f"{done.exception}{getattr(done.exception, 'message', '')}"


def test_the_program_alone_takes_them_only_without_a_command(record: Path) -> None:
    words = ["--slo", "ttft_s<1", "replay", str(record)]

    done = CliRunner().invoke(inferwatch, words, standalone_mode=False)

    assert "behind 'replay'" in str(done.exception)
