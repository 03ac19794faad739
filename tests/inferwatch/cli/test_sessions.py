"""``inferwatch sessions``: says what it did and how to undo it, never a traceback."""

import gzip
import json
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inferwatch.cli.main import inferwatch
from inferwatch.cli.running.chosen_session import say_which, session_location
from inferwatch.errors import InferwatchError, StorageError, UsageError
from inferwatch.record.connections import close_after_writing, open_for_writing
from inferwatch.record.sessions.erasing import cut_short
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.table import insert_sql

RECORDED = Path(__file__).parent.parent / "record" / "files" / "schema_3.db.gz"
COMMANDS = (
    "rename",
    "tag",
    "untag",
    "delete",
    "restore",
    "prune",
    "vacuum",
    "recover",
)


def sessions(path: Path, *arguments: str) -> Result:
    """The command; what it raises for the program's last line is raised here too."""
    result = CliRunner().invoke(inferwatch, ["sessions", "--db", str(path), *arguments])
    if isinstance(result.exception, InferwatchError):
        raise result.exception
    return result


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """s1 is real; s2 and s3 are empty, and younger."""
    path = tmp_path / "record.db"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))
    connection = open_for_writing(path)
    for name in ("second", "third"):
        row: dict[str, Any] = {
            "name": name,
            "command": "serve",
            "state": "complete",
            "started_ns": 1_900_000_000 * 10**9,
            "start_monotonic_ns": 1,
            "inferwatch_version": "0.1.0",
            "boot_id": "b",
            "pid": 1,
        }
        connection.execute(insert_sql("sessions", list(row)), list(row.values()))
    close_after_writing(connection)
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(sessions(path, "--json").output)
    return rows


def ids(path: Path, **options: Any) -> list[str]:
    return [row.id for row in list_sessions(path, **options)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str) -> None:
    result = CliRunner().invoke(inferwatch, ["sessions", command, "--help"])

    assert result.exit_code == 0
    assert "--json" in result.output


def test_without_a_command_it_lists_as_ever(record: Path) -> None:
    text = sessions(record).output
    listed = json.loads(sessions(record, "--json").output)

    assert [line.split()[0] for line in text.splitlines()] == ["id", "s3", "s2", "s1"]
    assert [each["id"] for each in listed] == ["s3", "s2", "s1"]
    assert listed[2]["model"] == "tiny-llama"
    assert listed[2]["size_bytes_estimate"] > 50_000


def test_nothing_recorded_says_how_to_begin(tmp_path: Path) -> None:
    result = sessions(tmp_path / "none.db")

    assert result.exit_code == 0
    assert "inferwatch demo" in result.output


def test_a_name_is_given_and_taken_back_as_it_says(record: Path) -> None:
    said = sessions(record, "rename", "s1", "before the fix").output
    undo = said.partition("Undo: inferwatch sessions ")[2].strip()

    assert said.startswith("s1 is now named before the fix.")
    assert undo == f"rename s1 'schema 3' --db {record}"
    told = json.loads(sessions(record, "rename", "before", "x", "--json").output)
    assert told["name_before"] == "before the fix"
    assert told["name"] == "x"


def test_tags_come_and_go(record: Path) -> None:
    added = json.loads(sessions(record, "--json", "tag", "s1", "keep", "h200").output)
    again = json.loads(sessions(record, "--json", "tag", "s1", "keep", "new").output)
    gone = json.loads(sessions(record, "--json", "untag", "s1", "keep").output)

    assert added["tags"] == ["keep", "h200"]
    assert again["tags"] == ["keep", "h200", "new"]
    undo = f"inferwatch sessions untag s1 new --db {record}"  # keep was there before
    assert again["undo"] == undo
    assert gone["tags"] == ["h200", "new"]
    assert "h200 new" in sessions(record).output


def test_what_is_deleted_is_restored_as_it_says(record: Path) -> None:
    said = sessions(record, "delete", "second", "s1").output

    assert "Undo: inferwatch sessions restore s2 s1" in said
    assert ids(record) == ["s3"]
    assert "in the bin" in sessions(record, "--bin").output
    sessions(record, "restore", "s2", "s1")
    assert ids(record) == ["s3", "s2", "s1"]


@pytest.mark.parametrize(
    "done",
    [
        pytest.param(["rename", "s1", "it's new"], id="rename"),
        pytest.param(["tag", "s1", "new"], id="tag"),
        pytest.param(["untag", "s1", "old"], id="untag"),
        pytest.param(["delete", "s1"], id="delete"),
        pytest.param(["restore", "s3"], id="restore"),
    ],
)
def test_the_command_that_undoes_works_wherever_the_record_is(
    done: list[str], record: Path
) -> None:
    sessions(record, "tag", "s1", "old")
    sessions(record, "delete", "s3")
    before = list_sessions(record)
    said = sessions(record, *done).output
    changed = list_sessions(record)

    undo = said.partition("Undo: inferwatch ")[2].splitlines()[0]
    result = CliRunner().invoke(inferwatch, shlex.split(undo))

    assert result.exit_code == 0
    assert changed != before == list_sessions(record)


def test_what_lists_a_record_names_it_where_it_is_not_the_usual_one(
    record: Path,
) -> None:
    with pytest.raises(StorageError, match=f"`inferwatch sessions --db {record}`"):
        sessions(record, "rename", "s99", "x")


def test_the_usual_record_needs_no_flag_to_undo(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(record))

    said = CliRunner().invoke(inferwatch, ["sessions", "delete", "s1"]).output

    assert "Undo: inferwatch sessions restore s1\n" in said
    assert said.endswith("inferwatch sessions vacuum\n")


def test_restoring_what_is_not_in_the_bin_is_said(record: Path) -> None:
    with pytest.raises(StorageError, match="not in the bin"):
        sessions(record, "restore", "s1")


def test_pruning_dry_says_what_would_go_and_keeps_it(record: Path) -> None:
    before = record.read_bytes()

    text = sessions(record, "prune", "--older-than", "0.02h", "--dry-run").output
    facts = json.loads(
        sessions(record, "prune", "--max-size", "0.001MB", "--dry-run", "--json").output
    )

    assert "s1" in text
    assert "1 session to delete; this frees about" in text
    assert "Nothing was deleted." in text
    assert facts["sessions"] == ["s1", "s2", "s3"]
    assert facts["frees_bytes_estimate"] > 50_000
    assert record.read_bytes() == before


def test_pruning_deletes_for_good_and_frees_the_disk(record: Path) -> None:
    size_bytes = record.stat().st_size

    result = sessions(record, "prune", "--older-than", "0.02h", "--yes", "--json")

    facts = json.loads(result.output)
    assert ids(record, bin_too=True) == ["s3", "s2"]
    assert facts["sessions"] == ["s1"]
    assert record.stat().st_size == size_bytes - facts["freed_bytes"] < size_bytes


def test_pruning_asks_and_without_anybody_to_ask_refuses(record: Path) -> None:
    result = sessions(record, "prune", "--older-than", "0.02h")

    assert result.exit_code == 2
    assert "add --yes or --dry-run" in result.output
    assert len(ids(record)) == 3


def test_what_is_tagged_keep_is_not_pruned(record: Path) -> None:
    sessions(record, "tag", "s1", "keep")

    sessions(record, "prune", "--older-than", "0.02h", "--max-size", "0MB", "--yes")

    assert ids(record) == ["s1"]


def test_vacuum_empties_the_bin_only(record: Path) -> None:
    sessions(record, "delete", "s1")

    facts = json.loads(sessions(record, "vacuum", "--yes", "--json").output)

    assert facts["sessions"] == ["s1"]
    assert facts["freed_bytes"] > 0
    assert ids(record, bin_too=True) == ["s3", "s2"]


def test_names_are_shown_as_they_were_typed(record: Path) -> None:
    sessions(record, "rename", "s1", "[/b] :bug: [red]x")

    assert "[/b] :bug: [red]x" in sessions(record).output


def test_when_a_salvaged_session_began_may_be_unknown(record: Path) -> None:
    with closing(sqlite3.connect(record)) as connection, connection:
        connection.execute("UPDATE sessions SET started_ns = 0 WHERE session = 1")

    said = sessions(record).output

    assert "1970" not in said
    assert "–" in next(line for line in said.splitlines() if line.startswith("s1"))


def test_vacuum_ends_a_deletion_that_was_cut_short(record: Path) -> None:
    with closing(sqlite3.connect(record)) as connection, connection:
        connection.execute("UPDATE sessions SET state = 'going' WHERE session = 1")
    sessions(record, "vacuum", "--yes")

    facts = json.loads(sessions(record, "vacuum", "--yes", "--json").output)

    assert cut_short(record) == []
    assert facts["frees_bytes_estimate"] == 0


def test_what_sessions_leave_beside_the_file_goes_and_is_counted(record: Path) -> None:
    beside = record.with_name("record.db-replay")
    beside.mkdir()
    for name in ("s1-a.db", "s1-a.db-wal", "s2-a.db", "s77-a.db"):
        (beside / name).write_bytes(bytes(1_000_000))
    sessions(record, "delete", "s1")
    told = json.loads(sessions(record, "vacuum", "--dry-run", "--json").output)

    facts = json.loads(sessions(record, "vacuum", "--yes", "--json").output)

    assert 3_000_000 < told["frees_bytes_estimate"] < 4_000_000
    assert 3_000_000 < facts["freed_bytes"] < 4_000_000
    assert [each.name for each in beside.iterdir()] == ["s2-a.db"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--older-than", "soon"),
        ("--older-than", "30"),
        ("--older-than", "90m"),
        ("--max-size", "500M"),
        ("--max-size", "1"),
        ("--max-size", "5XB"),
        ("--max-size", "-1"),
    ],
)
def test_an_amount_that_is_none_is_a_usage_error(
    record: Path, arguments: tuple[str, ...]
) -> None:
    result = sessions(record, "prune", *arguments)

    assert result.exit_code == 2
    assert "30d" in result.output or "5GB" in result.output


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("rename", "s9", "x"), StorageError, "No session 's9'"),
        (("rename", "s1", "last"), UsageError, "reserved for session ids"),
        (("tag", "s1", "a,b"), UsageError, "is not a tag"),
        (("delete", "s1", "nope"), StorageError, "No session 'nope'"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_done(
    record: Path, arguments: tuple[str, ...], error: type[Exception], match: str
) -> None:
    before = record.read_bytes()

    with pytest.raises(error, match=match):
        sessions(record, *arguments)

    assert record.read_bytes() == before


def test_a_damaged_file_is_listed_and_the_loss_goes_to_stderr(
    record: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(record)) as connection:
        query = "SELECT pageno FROM dbstat WHERE name = 'steps' AND pagetype = 'leaf'"
        (page,) = connection.execute(f"{query} ORDER BY pageno DESC LIMIT 1").fetchone()
    data = bytearray(record.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = bytes(range(256)) * 16
    record.write_bytes(data)

    listed = sessions(record, "--json")
    rescued = record.with_name("rescued #1.db")
    recovered = sessions(record, "recover", str(rescued), "--json")

    assert [each["id"] for each in json.loads(listed.stdout)] == ["s3", "s2", "s1"]
    assert "readings are lost (s1" in listed.stderr
    lost = json.loads(recovered.stdout)["readings_lost"]
    assert lost > 0
    assert f"{lost:,} of " in listed.stderr
    assert sessions(rescued).stderr == ""
    again = sessions(record, "recover", str(tmp_path / "a b.db")).stdout
    assert shlex.split(again.strip(), comments=True)[-1] == str(tmp_path / "a b.db")


def test_a_session_without_a_name_is_called_by_its_command_and_the_newest_is_meant(
    record: Path,
) -> None:
    sessions(record, "rename", "s1", "serve before")
    sessions(record, "rename", "s2", "")
    sessions(record, "rename", "s3", "")
    shown = [each["name"] or each["command"] for each in rows_of(record)]

    result = sessions(record, "tag", "serve", "chosen")

    assert shown[:2] == ["serve", "serve"]
    assert result.stdout.startswith("s3 now has chosen.")
    assert result.stderr == (
        "inferwatch: 'serve' is s3, the newest of 2 sessions called so; before it s2\n"
    )


@pytest.mark.parametrize(
    "words", [("why", "serve"), ("compare", "serve", "s1"), ("export", "serve")]
)
def test_wherever_a_session_is_taken_it_is_said_which_is_meant(
    record: Path, words: tuple[str, ...]
) -> None:
    for each in ("s2", "s3"):
        sessions(record, "rename", each, "")
    more = ("--html", "-") if words[0] == "export" else ()

    result = CliRunner().invoke(inferwatch, [*words, *more, "--db", str(record)])

    assert "'serve' is s3, the newest of 2 sessions called so" in result.stderr


def test_a_name_goes_before_a_command_and_an_id_before_both(record: Path) -> None:
    sessions(record, "rename", "s3", "")
    sessions(record, "rename", "s2", "serve")

    result = sessions(record, "tag", "serve", "chosen")

    assert result.stdout.startswith("s2 now has chosen.")
    assert not result.stderr


def test_the_beginning_of_several_is_told_with_ids(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions(record, "rename", "s3", "sooner")

    say_which(record, "s")
    with pytest.raises(StorageError, match=r"may mean s3 \(sooner\), s2 \(second\), s"):
        sessions(record, "tag", "s", "chosen")

    assert not capsys.readouterr().err


def test_a_session_is_meant_before_a_file_that_is_no_record(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFERWATCH_DB", str(record))
    Path("second").touch()
    Path("copy").write_bytes(record.read_bytes())

    assert session_location("second", None) == (record, "second")
    assert session_location("copy:second", None) == (Path("copy"), "second")


def test_a_result_of_another_tool_is_to_be_imported(tmp_path: Path) -> None:
    result = tmp_path / "a b.json"
    result.write_text("{}")

    with pytest.raises(UsageError, match=rf"`inferwatch import '{result}'` makes"):
        session_location(str(result), None)


def test_a_session_of_a_file_is_named_behind_it(record: Path) -> None:
    assert session_location(f"{record}:second", None) == (record, "second")
    assert session_location(str(record), None) == (record, "last")
    assert session_location("second", record) == (record, "second")


def test_what_people_type_to_list_them_lists_them(record: Path) -> None:
    sessions(record, "delete", "s1")

    assert sessions(record, "list").output == sessions(record).output
    assert sessions(record, "list", "--bin").output == sessions(record, "--bin").output
    assert "in the bin" in sessions(record, "list", "--bin").output


def test_the_number_of_an_id_is_enough(record: Path) -> None:
    assert sessions(record, "tag", "2", "chosen").stdout.startswith("s2 now has")
