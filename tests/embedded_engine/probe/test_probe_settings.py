"""What people choose of the probe, and what is refused."""

import contextvars
from pathlib import Path

import pytest

from embedded_engine.engine.config import EngineConfig
from embedded_engine.probe.tap.front_tap import GroupHeaderHook, asked_header
from embedded_engine.probe_settings import LONGEST_VALUE, ProbeSettings, refusal


@pytest.mark.parametrize("header", ["Authorization", "COOKIE", "x-api-key"])
def test_a_secret_is_refused_however_it_is_written(header: str) -> None:
    assert "secret" in (refusal(header) or "")


@pytest.mark.parametrize("header", ["", "two words", "x:y", "ü"])
def test_what_is_no_header_is_refused(header: str) -> None:
    assert "not a name" in (refusal(header) or "")


def test_any_other_may_be_chosen() -> None:
    assert refusal("X-Tenant") is None


def test_what_was_chosen_is_told_to_the_engine_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_GROUP_HEADER", "x-team")
    plain = EngineConfig(model="m", log_path=tmp_path)
    chosen = ProbeSettings(block_map=False, group_header="x-tenant")
    other = EngineConfig(model="m", log_path=tmp_path, probe=chosen)

    assert plain.environment()["INFERWATCH_GROUP_HEADER"] == "x-team"
    assert "INFERWATCH_BLOCK_MAP" not in plain.environment()
    assert other.environment()["INFERWATCH_GROUP_HEADER"] == "x-tenant"
    assert other.environment()["INFERWATCH_BLOCK_MAP"] == "0"


def test_control_is_off_unless_it_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFERWATCH_CONTROL", raising=False)
    plain = EngineConfig(model="m", log_path=tmp_path)
    chosen = ProbeSettings(control=True)
    other = EngineConfig(model="m", log_path=tmp_path, probe=chosen)

    assert "INFERWATCH_CONTROL" not in plain.environment()
    assert other.environment()["INFERWATCH_CONTROL"] == "1"


def asked(kind: str, headers: list[tuple[bytes, bytes]]) -> str | None:
    """What is known where a request with these headers is handled."""
    hook = GroupHeaderHook("X-Tenant").hooks()["asked"].before
    assert hook is not None
    context = contextvars.copy_context()
    context.run(hook, object(), ({"type": kind, "headers": headers},), 0)
    return context.run(asked_header)


def test_only_the_chosen_header_of_a_request_is_known() -> None:
    headers = [(b"cookie", b"secret"), (b"x-tenant", b" acme "), (b"x-tenant", b"b")]

    assert asked("http", headers) == "acme"
    assert asked("lifespan", headers) is None
    assert asked("http", [(b"x-tenant", b"")]) is None
    assert asked("http", [(b"x-tenant", b"\xff" * 300)]) == "\ufffd" * LONGEST_VALUE
    assert asked_header() is None
