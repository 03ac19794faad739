"""What is read for a comparison is what the screens show of the same session."""

import lzma
import sqlite3
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from shutil import copyfile

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Step,
    WatchedSlo,
)
from inferwatch.errors import UsageError
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.connections import (
    close_after_writing,
    open_for_reading,
    open_for_writing,
)
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import recorded
from inferwatch.sample import PACKED
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice, WarmupCut
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.studies.compare.conftest import TinyEngine, write

EVERYTHING = SpanChoice(from_s=-1e4, to_s=1e4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded from real vLLM; a copy that nobody else has marked."""
    path = tmp_path_factory.mktemp("sample") / "sample.db"
    packed = files("inferwatch.sample").joinpath(PACKED).read_bytes()
    path.write_bytes(lzma.decompress(packed))
    return path


def read(path: Path, name: str = "last", **ask: object) -> SessionNumbers:
    with closing(open_for_reading(path)) as connection:
        return read_session(connection, find(path, name), SessionQuery(**ask))  # type: ignore[arg-type]


def screen(path: Path, name: str = "last", slo: WatchedSlo | None = None) -> Snapshot:
    """The whole session as its screens show it at its end."""
    session = find(path, name)
    model = Model(slo=slo)
    with closing(open_for_reading(path)) as connection:
        connection.execute("BEGIN")
        for _, reading in recorded(connection, session.session):
            model.fold(reading)
    return model.snapshot(session.duration_ns + 1, SnapshotQuery(Window.SESSION))


def test_latencies_of_real_vllm_are_those_of_the_screens(sample: Path) -> None:
    shown = screen(sample)

    numbers = read(sample, choice=EVERYTHING)

    rows: dict[str, Quantiles] = {
        each.metric: each.quantiles for each in shown.latencies
    }
    assert shown.client is not None
    rows |= {f"client.{each.metric}": each.quantiles for each in shown.client.latencies}
    for name in ("ttft_s", "e2el_s", "queue_s", "tpot_s", "itl_s", "client.ttft_s"):
        found = numbers.counted[name]
        assert found.n == rows[name].n > 100, name
        mean_s = found.sums_s.sum() / found.n
        assert mean_s == pytest.approx(rows[name].mean, rel=1e-4), name
        for share, quantile in ((0.5, rows[name].p50), (0.99, rows[name].p99)):
            assert found.quantile_s(share) == pytest.approx(
                quantile, rel=2e-3, abs=1e-6
            ), name


def test_steps_and_tokens_are_those_of_the_table(sample: Path) -> None:
    numbers = read(sample, choice=EVERYTHING)

    with closing(sqlite3.connect(sample)) as connection:
        steps, tokens, members = connection.execute(
            "SELECT count(*), sum(output_tokens), "
            "sum(prefill_requests + decode_requests) FROM steps "
            "WHERE session = (SELECT max(session) FROM sessions)"
        ).fetchone()
    assert numbers.counted["steps.duration_s"].n == steps
    assert numbers.sums["output_tokens_per_s"].above.sum() == tokens
    assert numbers.sums["batch_mean"].above.sum() == members


def test_acceptance_is_read_from_steps_and_absent_where_nothing_was_drafted(
    sample: Path, tmp_path: Path
) -> None:
    drafted = tmp_path / "drafted.db"
    copyfile(sample, drafted)
    connection = open_for_writing(drafted)
    connection.execute(
        "UPDATE steps SET drafts = 2, drafted_tokens = 8, accepted_tokens = 3 "
        "WHERE step % 2"
    )
    close_after_writing(connection)

    sums = read(drafted, choice=EVERYTHING).sums

    share, length = sums["acceptance"], sums["acceptance_length"]
    assert share.above.sum() / share.below.sum() == pytest.approx(3 / 8)
    assert length.above.sum() / length.below.sum() == pytest.approx(1 + 3 / 2)
    assert not {"acceptance", "acceptance_length"} & {
        *read(sample, choice=EVERYTHING).sums
    }


def test_a_window_leaves_out_what_came_outside(sessions: Path) -> None:
    whole = read(sessions, "before", choice=SpanChoice(warmup_s=0.0))
    first = read(sessions, "before", choice=SpanChoice(from_s=0.0, to_s=45.0))
    second = read(sessions, "before", choice=SpanChoice(from_s=45.0))

    for name, counted in whole.counted.items():
        assert first.counted[name].n + second.counted[name].n == counted.n, name
    assert first.span.cut is WarmupCut.NONE
    assert second.span.cut is WarmupCut.GIVEN


def test_slow_requests_of_an_overload_are_followed_to_their_end(
    overloaded: Path,
) -> None:
    numbers = read(overloaded, "flooded", choice=SpanChoice(from_s=0.0, to_s=10.0))

    with closing(sqlite3.connect(overloaded)) as connection:
        came, slowest_s = connection.execute(
            "SELECT count(*), max(e2el_s) FROM requests "
            "WHERE arrived_ns >= 2e9 AND arrived_ns < 12e9"
        ).fetchone()
        (late,) = connection.execute(
            "SELECT count(*) FROM requests WHERE arrived_ns < 12e9 "
            "AND first_token_ns >= 12e9"
        ).fetchone()
    assert late > came / 3
    for name in ("ttft_s", "e2el_s", "queue_s", "tpot_s"):
        assert numbers.counted[name].n == came, name
    for name in ("client.ttft_s", "client.e2el_s", "client.tpot_s"):
        assert numbers.counted[name].n == came, name
    for name in ("e2el_s", "client.e2el_s"):
        assert numbers.counted[name].quantile_s(1.0) == pytest.approx(
            slowest_s, rel=2e-2
        ), name


def test_gaps_of_requests_that_came_in_the_window_belong_to_it(
    overloaded: Path,
) -> None:
    numbers = read(overloaded, "flooded", choice=SpanChoice(from_s=0.0, to_s=10.0))

    with closing(sqlite3.connect(overloaded)) as connection:
        (gaps,) = connection.execute(
            "SELECT sum(output_tokens - 1) FROM requests "
            "WHERE arrived_ns >= 2e9 AND arrived_ns < 12e9"
        ).fetchone()
    assert numbers.counted["itl_s"].n == gaps
    assert numbers.counted["client.itl_s"].n == gaps


def test_requests_that_never_ended_are_counted(sessions: Path) -> None:
    numbers = read(sessions, "slow", choice=SpanChoice(warmup_s=0.0))

    with closing(sqlite3.connect(sessions)) as connection:
        (unended,) = connection.execute(
            "SELECT count(*) FROM requests WHERE session = 3 AND finished_ns IS NULL"
        ).fetchone()
    assert numbers.load.unended == unended > 0


def test_what_the_load_gave_up_at_its_end_is_unended_and_no_failure(
    tmp_path: Path,
) -> None:
    """The engine ends such requests as aborted; their answers are cut short."""
    cut = 40
    whole = [*TinyEngine(1).run(20)]
    ended = [e for e in whole if isinstance(e, RequestRecord)]
    given_up = {each.external_id for each in ended[-cut:]}
    names = {f"r{each.index}" for each in ended[-cut:]}

    def stopped(reading: AnyReading) -> AnyReading:
        if isinstance(reading, RequestRecord) and reading.external_id in given_up:
            return msgspec.structs.replace(reading, failure="aborted")
        if isinstance(reading, RequestEvent) and (
            reading.request_id in names and reading.kind is EventKind.FINISHED
        ):
            return msgspec.structs.replace(reading, reason="abort", output_tokens=1)
        return reading

    write(tmp_path / "it.db", "whole", iter(whole))
    write(tmp_path / "it.db", "cut", map(stopped, whole))

    before = read(tmp_path / "it.db", "whole", choice=EVERYTHING).load
    after = read(tmp_path / "it.db", "cut", choice=EVERYTHING).load

    assert before.failed == after.failed == 0
    assert after.unended == before.unended + cut
    assert after.output_tokens == pytest.approx(before.output_tokens, rel=0.1)


def test_time_counts_from_the_beginning_of_the_load(sessions: Path) -> None:
    numbers = read(sessions, "before", choice=SpanChoice(warmup_s=0.0))

    assert numbers.span.origin_ns == 2_000_000_000
    assert numbers.span.to_s == pytest.approx(90.0)


def test_goodput_counts_requests_that_hold_every_limit(sessions: Path) -> None:
    slo = parse_slo("ttft_s<40ms e2el_s<0.5")

    numbers = read(
        sessions, "slow", choice=SpanChoice(warmup_s=0.0), objectives={"": slo}
    )

    with closing(sqlite3.connect(sessions)) as connection:
        (good,) = connection.execute(
            "SELECT count(*) FROM requests WHERE session = 3 AND ttft_s < 0.04 "
            "AND e2el_s < 0.5"
        ).fetchone()
        (client_good,) = connection.execute(
            "SELECT count(*) FROM client_requests WHERE session = 3 AND ttft_s < 0.04 "
            "AND e2el_s < 0.5 AND failure IS NULL"
        ).fetchone()
    assert 10 < good < numbers.sums["goodput_per_s"].n
    assert numbers.sums["goodput_per_s"].above.sum() == pytest.approx(good, abs=1)
    found = numbers.sums["client.goodput_per_s"].above.sum()
    assert found == pytest.approx(client_good, abs=1)


@pytest.mark.parametrize(
    "slo", ["itl_s<30ms", "tpot_s<24ms", "ttft_s<60ms tpot_s<22ms itl_s<35ms e2el_s<1"]
)
def test_whoever_judges_a_request_of_a_server_says_the_same(
    sessions: Path, slo: str
) -> None:
    replayed = screen(sessions, "slow", WatchedSlo(t_ns=0, slo=slo)).slo

    numbers = read(sessions, "slow", choice=EVERYTHING, objectives={"": parse_slo(slo)})

    assert replayed is not None
    assert 10 < replayed.good < replayed.judged - 10
    assert numbers.sums["goodput_per_s"].above.sum() == replayed.good
    assert numbers.sums["goodput_per_s"].n == replayed.judged


def test_a_server_s_requests_are_judged_by_the_objectives_of_their_class(
    tmp_path: Path,
) -> None:
    path = tmp_path / "classes.db"

    def in_classes(reading: AnyReading) -> AnyReading:
        if isinstance(reading, RequestEvent) and reading.external_id is not None:
            of_prompt = f"{reading.external_id}-0"  # as vLLM makes it
            return msgspec.structs.replace(reading, external_id=of_prompt)
        if isinstance(reading, RequestRecord):
            name = "chat" if reading.index % 2 else "batch"
            return msgspec.structs.replace(reading, class_name=name)
        return reading

    write(path, "classes", map(in_classes, TinyEngine(6).run(10)))
    strict, loose = parse_slo("ttft_s<1e-6"), parse_slo("ttft_s<1e3")

    numbers = read(path, choice=EVERYTHING, objectives={"": strict, "chat": loose})

    server, client = (
        numbers.sums[key] for key in ("goodput_per_s", "client.goodput_per_s")
    )
    assert server.above.sum() == client.above.sum() > 10
    assert server.above.sum() < server.n - 10


def test_gaps_that_nobody_saw_are_neither_good_nor_bad(tmp_path: Path) -> None:
    path = tmp_path / "unseen.db"
    seen = TinyEngine(6).run(10)
    write(path, "unseen", (e for e in seen if not isinstance(e, Step) or e.index > 50))

    numbers = read(path, choice=EVERYTHING, objectives={"": parse_slo("itl_s<1")})

    assert "goodput_per_s" not in numbers.sums
    assert numbers.sums["client.goodput_per_s"].n > 10


def test_throughput_over_time_holds_all_tokens(sessions: Path) -> None:
    numbers = read(sessions, "after", choice=SpanChoice(warmup_s=0.0))

    line = numbers.throughput
    assert line is not None
    assert np.sum(line.per_s) * line.bin_s == pytest.approx(
        numbers.sums["output_tokens_per_s"].above.sum()
    )


def test_a_session_without_requests_is_refused(sessions: Path) -> None:
    with pytest.raises(UsageError, match="has no requests"):
        read(sessions, "empty")


def test_a_window_beyond_the_session_is_refused(sessions: Path) -> None:
    with pytest.raises(UsageError, match=r"its load lasted 3\.0 s"):
        read(sessions, "short", choice=SpanChoice(from_s=50.0))


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of a few requests each."""
    path = tmp_path_factory.mktemp("brief") / "sessions.db"
    write(path, "before", TinyEngine(1).run(5))
    write(path, "slow", TinyEngine(3, slots=8, step_ms=20).run(5))
    return path


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (("ttft_s<40ms", "ttft_s<0.04"), True),
        pytest.param(
            ("ttft_s<40ms; target=0.9", "ttft_s<40ms"), True, marks=pytest.mark.soak
        ),
        (("ttft_s<40ms", "ttft_s<50ms"), False),
        (("ttft_s<40ms; chat: ttft_s<1", "ttft_s<40ms; chat: ttft_s<1"), False),
        pytest.param(("ttft_s<40ms", None), False, marks=pytest.mark.soak),
    ],
    ids=["same", "same limits", "other limits", "by class", "one of them"],
)
def test_sessions_that_were_watched_for_the_same_are_judged_by_it(
    brief: Path, tmp_path: Path, said: tuple[str | None, ...], known: bool
) -> None:
    record = Path(copyfile(brief, tmp_path / "watched.db"))
    with closing(sqlite3.connect(record)) as connection, connection:
        for name, slo in zip(("before", "slow"), said, strict=True):
            if slo is not None:
                connection.execute(
                    "INSERT INTO watched_slos SELECT session, 0, (SELECT source FROM "
                    "sources WHERE sources.session = sessions.session LIMIT 1), 0, ? "
                    "FROM sessions WHERE name = ?",
                    (slo, name),
                )

    wanted = ComparisonRequest(database=record, sessions=("before", "slow"))
    compared = run_comparison(wanted)

    assert all(("goodput_per_s" in each.sums) is known for each in compared.sessions)
