"""``inferwatch compare`` as people type it."""

import json
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from shutil import copyfile

import pytest

from collectors.contract.readings import ClientSample
from inferwatch.cli.running.compare import OutputForm, print_comparison
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from tests.inferwatch.studies.compare.conftest import LOAD, SECOND, TinyEngine, write

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def compared(sessions: Path, run_command: Run) -> Run:
    """``compared(*arguments)`` in the file of the sessions."""

    def run(*arguments: object) -> tuple[int, str, str]:
        return run_command("--db", sessions, *arguments)

    return run


@pytest.fixture(scope="module")
def failing(sessions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sessions, and most requests of ``failing`` failed."""
    path = tmp_path_factory.mktemp("failing") / "sessions.db"
    copyfile(sessions, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE requests SET reason = 'error' WHERE session = 2 AND ordinal % 5"
        )
        connection.execute("UPDATE sessions SET name = 'failing' WHERE session = 2")
    return path


def test_the_same_engine_twice_is_not_called_better_or_worse(compared: Run) -> None:
    status, text, _ = compared("before", "after")

    assert status == 0
    assert text.startswith("No difference shown between before and after, in ")
    assert not re.search(r"^▼|^▲", text, re.MULTILINE)


def test_a_slower_engine_is_called_worse_and_its_settings_are_named(
    compared: Run,
) -> None:
    _, text, _ = compared("before", "slow")

    assert text.startswith("Keep max_num_seqs 16: with 8, TTFT p50 is 79% worse, ")
    assert "slow against before: worse in" in text
    assert re.search(r"^ +before: 16 +slow: 8  change", text, re.MULTILINE)
    assert "\n  max_num_seqs: before 16 · slow 8\n" in text
    assert "not paired (their loads differ: seed 1 and 3)" in text
    assert "`inferwatch load --like s1` sends" in " ".join(text.split())


def test_different_loads_are_said_before_any_table(
    compared: Run, sessions: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(sessions.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE requests SET prompt_tokens = prompt_tokens * 2 WHERE session = 2"
        )

    _, text, _ = compared("before", f"{path}:after")

    head, *rest = text.split("\n\n")
    said = " ".join(" ".join(rest).split())
    assert "though their loads differ" in " ".join(head.split())
    assert "! after and before were not given the same load:" in said
    assert re.search(r"prompt tokens differ by (9[5-9]|10[0-5])%", said)


def test_json_holds_values_intervals_and_verdicts(compared: Run) -> None:
    _, text, _ = compared("before", "slow", "--json")

    found = json.loads(text)
    ttft = found["pairs"][0]["metrics"]["tpot_mean_s"]
    low, high = ttft["ratio_ci95"]
    assert ttft["verdict"] == "worse"
    assert 1 < low < ttft["b"] / ttft["a"] < high
    assert ttft["vantage"] == "engine"
    assert found["configuration_differences"]["engine max_num_seqs"] == ["16", "8"]
    assert found["seed"] == 0
    assert found["pairs"][0]["paired"] is None
    assert found["pairs"][0]["not_paired"] == "their loads differ: seed 1 and 3"
    assert found["pairs"][0]["runs"] == [1, 1]
    assert found["sides"][1] == {"name": "slow", "sessions": ["slow"], "ids": ["s3"]}


def test_json_says_what_was_paired(run_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    write(path, "a", TinyEngine(1).run(20))
    write(path, "b", TinyEngine(1, step_ms=20).run(20))

    _, text, _ = run_command("--db", path, "a", "b", "--json")

    (pair,) = json.loads(text)["pairs"]
    assert 100 < pair["paired"]["requests"] <= pair["paired"]["of"]
    assert pair["not_paired"] is None


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        (("tpot_mean_s > +5%",), 1),
        (("tpot_mean_s > +900%", "tpot_mean_s < -5%", "goodput_per_s < -5%"), 0),
    ],
)
def test_the_exit_status_is_1_only_when_a_condition_surely_holds(
    compared: Run, conditions: tuple[str, ...], status: int
) -> None:
    asked = chain.from_iterable(("--fail-if", each) for each in conditions)

    ended, text, _ = compared("before", "slow", *asked)

    assert ended == status
    for each in conditions:
        assert repr(each) in text


@pytest.mark.parametrize(
    ("sides", "status"), [(("before", "failing"), 1), (("failing", "before"), 4)]
)
@pytest.mark.parametrize("flag", [(), ("--inconclusive-fails",)], ids=str)
def test_a_comparison_that_is_void_passes_no_condition(
    run_command: Run,
    failing: Path,
    sides: tuple[str, str],
    status: int,
    flag: tuple[str, ...],
) -> None:
    asked = ("--fail-if", "ttft_p50_s > +900%", *flag)

    ended, text, _ = run_command("--db", failing, *sides, *asked)

    assert ended == status
    said = "FAILED" if status == 1 else "cannot tell, so it fails"
    assert f"'ttft_p50_s > +900%': {said}: " in " ".join(text.split())
    assert run_command("--db", failing, *sides)[0] == 0


def test_a_warm_up_can_be_given_and_left_in(compared: Run) -> None:
    _, given, _ = compared("before", "after", "--warmup", "12")
    _, none, _ = compared("before", "after", "--warmup", "none")

    assert "before (s1): 12.0 to 90.0 s after its load began" in given
    assert "warm-up cut: given" in given
    assert "before (s1): 0.0 to 90.0 s after its load began" in none


def test_windows_can_be_chosen_for_each(compared: Run) -> None:
    window = ("--a-from", "10", "--a-to", "40", "--b-from", "50", "--b-to", "80")

    _, text, _ = compared("before", "after", *window)

    assert "before (s1): 10.0 to 40.0 s" in text
    assert "after (s2): 50.0 to 80.0 s" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("before",), "needs two sessions"),
        (("before", "before"), "is one run"),
        (("before", "s1"), "is given twice"),
        (("before", "nosuch"), "No session 'nosuch'"),
        (("before", "empty"), "has no requests"),
        (("before", "after", "--warmup", "soon"), "give seconds, auto or none"),
        (("before", "after", "--warmup", "nan"), "give seconds, auto or none"),
        (("before", "after", "--a-from", "500"), "Nothing of before is left"),
        (("before", "after", "--b-to", "0.001"), "No request of after is in"),
        (("before", "after", "--fail-if", "ttft > 5"), "client.goodput_per_s"),
        (("before", "after", "--slo", "nonsense"), "--slo"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_says_why(
    compared: Run, arguments: tuple[str, ...], why: str
) -> None:
    status, _, errors = compared(*arguments)

    assert status == 2
    assert why in errors


def test_a_session_that_is_being_recorded_is_refused(
    run_command: Run, sessions: Path, tmp_path: Path
) -> None:
    recorder = Recorder.open(tmp_path / "live.db", name="live", floor_bytes=0)
    try:
        status, _, errors = run_command("--db", sessions, "before", recorder.path)
    finally:
        recorder.close()

    assert status == 2
    assert "live is still being recorded" in errors


def test_goodput_is_compared_by_the_objectives_given(compared: Run) -> None:
    _, text, _ = compared("before", "slow", "--slo", "e2el_s<0.4", "--all")

    assert re.search(r"goodput +frontend", text)
    assert re.search(r"goodput +client", text)


def test_energy_and_cost_are_not_made_up(compared: Run) -> None:
    _, text, _ = compared("before", "after")

    said = " ".join(text.split())
    assert "Not compared: cost (no prices: --gpu-hour or --kwh), GPU energy" in said


def test_prices_that_are_recorded_are_not_denied(
    run_command: Run, sessions: Path, tmp_path: Path
) -> None:
    path = tmp_path / "priced.db"
    path.write_bytes(sessions.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO prices (session, ordinal, source, t_ns, gpu_hour, currency) "
            "SELECT session, 0, 0, 0, 2.5, '$' FROM sessions WHERE name = 'before'"
        )

    _, text, _ = run_command("--all", "--db", path, "before", "after")

    assert "Not compared: GPU energy" in " ".join(text.split())
    assert re.search(r"cost/Mtok +engine +\d", text)


def test_cost_is_what_the_tokens_of_the_hours_come_to(
    run_command: Run, sessions: Path, tmp_path: Path
) -> None:
    path = priced(sessions, tmp_path, "$")

    _, text, _ = run_command(
        "--json", "--db", path, "before", "slow", "--slo", "e2el_s<0.6"
    )

    (pair,) = json.loads(text)["pairs"]
    metrics = pair["metrics"]
    for side in ("a", "b"):
        per_s = metrics["output_tokens_per_s"][side]
        expected = 2.5 / 3600 * 1e6 / per_s
        assert metrics["cost_per_mtok"][side] == pytest.approx(expected)
        assert metrics["cost_per_good_mtok"][side] > expected
    assert metrics["cost_per_mtok"]["ratio_ci95"] is not None
    assert "not_compared" in text
    assert json.loads(text)["not_compared"].startswith("Not compared: GPU energy")


def test_costs_in_two_currencies_are_not_judged(
    run_command: Run, sessions: Path, tmp_path: Path
) -> None:
    path = priced(sessions, tmp_path, "€")

    _, text, _ = run_command("--json", "--db", path, "before", "after")

    (pair,) = json.loads(text)["pairs"]
    assert pair["metrics"]["cost_per_mtok"]["verdict"] == "cannot tell"
    assert pair["metrics"]["cost_per_mtok"]["why"] == "their prices are in $ and €"


def priced(sessions: Path, folder: Path, currency: str) -> Path:
    """The sessions, each with a price of an hour; that of ``before`` is in $."""
    path = folder / "priced.db"
    path.write_bytes(sessions.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO prices (session, ordinal, source, t_ns, gpu_hour, currency) "
            "SELECT session, 0, 0, 0, 2.5, "
            "CASE name WHEN 'before' THEN '$' ELSE ? END FROM sessions",
            (currency,),
        )
    return path


def test_sessions_of_one_name_are_told_apart_by_their_files(
    run_command: Run, sessions: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "monday.db", tmp_path / "friday.db"
    for path in (first, second):
        path.write_bytes(sessions.read_bytes())

    _, text, _ = run_command("--text", f"{first}:before", f"{second}:before")

    assert "friday against monday: no difference shown" in text


@pytest.fixture(scope="module")
def starved(sessions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sessions, and ``starved``: a much slower engine, a client without a core."""
    path = tmp_path_factory.mktemp("starved") / "sessions.db"
    path.write_bytes(sessions.read_bytes())
    slow = TinyEngine(5, slots=8, step_ms=20).run(90)
    told = ClientSample(
        t_ns=92 * SECOND,
        span_ns=90 * SECOND,
        final=True,
        transport="raw",
        cpu_s=87.3,
        source=LOAD,
    )
    write(path, "starved", chain(slow, [told]))
    return path


@pytest.mark.parametrize(
    "pair",
    [
        ("before", "starved"),
        pytest.param(("starved", "before"), marks=pytest.mark.soak),
    ],
)
def test_what_a_starved_client_measured_is_neither_better_nor_worse(
    starved: Path, run_command: Run, pair: tuple[str, str]
) -> None:
    _, told, _ = run_command("--db", starved, *pair, "--json")

    found = json.loads(told)
    metrics = found["pairs"][0]["metrics"]
    client = [each for each in metrics.values() if each["vantage"] == "client"]
    assert {each["verdict"] for each in client} == {"cannot tell"}
    assert {each["why"] for each in client} == {
        "starved's client was too slow (CLIENT-BOUND)"
    }
    assert not any(each["more_requests"] or each["ratio"] for each in client)
    assert metrics["tpot_p50_s"]["verdict"] in {"better", "worse"}
    verdicts = {each["name"]: each["client"] for each in found["sessions"]}
    assert verdicts["before"]["verdict"] == "UNKNOWN"
    assert verdicts["starved"]["reasons"] == ["the load generator used 97% of a core"]


def test_a_starved_client_is_named_before_the_figures(
    starved: Path, run_command: Run
) -> None:
    _, text, _ = run_command("--db", starved, "before", "starved")

    head = " ".join(text.split("\n\n")[0].split())
    said = " ".join(text.split())
    assert "client too slow" in head
    assert "! starved's client was too slow" in said
    assert "CLIENT-BOUND: the load generator used 97% of a core" in said
    assert "rows: starved's client was too slow (CLIENT-BOUND)" in " ".join(
        text.split()
    )


def test_a_run_outside_the_window_accuses_nobody(
    starved: Path, run_command: Run, tmp_path: Path
) -> None:
    """Its requests came in the first 90 s; what is compared begins where they end."""
    path = copyfile(starved, tmp_path / "sessions.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO sources SELECT session, 99, 'load-2' FROM sessions "
            "WHERE name = 'starved'"
        )
        connection.execute(
            "UPDATE client_samples SET source = 99 WHERE session = "
            "(SELECT session FROM sessions WHERE name = 'starved')"
        )
        connection.execute(
            "UPDATE client_requests SET source = 99 WHERE intended_ns < 30000000000 "
            "AND session = (SELECT session FROM sessions WHERE name = 'starved')"
        )

    for begin, verdict in (("0", "CLIENT-BOUND"), ("40", "UNKNOWN")):
        window = ("--b-from", begin, "--json")
        _, told, _ = run_command("--db", path, "before", "starved", *window)
        assert json.loads(told)["sessions"][1]["client"]["verdict"] == verdict


def test_no_condition_fails_by_what_a_starved_client_measured(
    starved: Path, run_command: Run
) -> None:
    ask = ("--fail-if", "client.tpot_p50_s > +5%")
    status, text, _ = run_command("--db", starved, "before", "starved", *ask)
    _, told, _ = run_command("--db", starved, "before", "starved", *ask, "--json")

    why = "starved's client was too slow (CLIENT-BOUND)"
    (check,) = json.loads(told)["pairs"][0]["fail_if"]
    assert status == 0
    assert f"cannot tell, so it passes: {why}" in " ".join(text.split())
    assert (check["outcome"], check["why"]) == ("cannot tell", why)


@pytest.mark.parametrize(
    "forms",
    [
        ("--text", "--json"),
        ("--json", "--markdown"),
        ("--text", "--markdown"),
        ("--all", "--json"),
    ],
    ids=" ".join,
)
def test_there_is_one_form_at_a_time(compared: Run, forms: tuple[str, str]) -> None:
    status, _, errors = compared("before", "after", *forms)

    assert status == 2
    assert f"{forms[0]} and {forms[1]} exclude each other" in errors.replace(
        f"{forms[1]} and {forms[0]}", f"{forms[0]} and {forms[1]}"
    )


def test_a_summary_for_pull_requests_has_the_same_exit_status(compared: Run) -> None:
    ask = ("--markdown", "--fail-if", "tpot_mean_s > +5%")

    status, text, _ = compared("before", "slow", *ask)

    assert status == 1
    assert text.startswith("### inferwatch compare: FAILED, ▼ worse")


def test_colours_are_for_terminals_that_want_them(
    sessions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ComparisonRequest(database=sessions, sessions=("before", "slow"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printed = {}
    for wish in ("", "1"):
        monkeypatch.setenv("NO_COLOR", wish)
        print_comparison(wanted, OutputForm.TEXT)
        printed[wish] = capsys.readouterr().out

    assert "\x1b[31m▼ worse" in printed[""]
    assert "\x1b" not in printed["1"]
    assert "▼ worse" in printed["1"]
