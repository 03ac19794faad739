"""What a test needs of the machine: nothing, processes of its own, or all of it."""

import asyncio
import gc
import os
import secrets
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import hypothesis
import msgspec
import platformdirs
import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.widgets import Input

from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.launch import Engine
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.record import connections
from inferwatch.record.file.sqlite import connect
from tests.embedded_engine.loud_model import make_loud

os.environ["INFERWATCH_TRACEBACK"] = "1"  # a fault of ours is seen, not told
os.environ["INFERWATCH_PORTS"] = ""  # whatever else runs here is left alone

ROOT = Path(__file__).parent.parent
DRAWN_BY = (3, 11)
"""The interpreter that draws the pictures: others wrap and number them otherwise."""
STARTERS = frozenset({"home", "truth_uds", "truth_url", "under_load"})
"""Fixtures that start processes: what uses one is marked ``process``."""
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""What the interpreter tells its audit hooks of a process that is started."""

GROUP_HEADER = "x-tenant"
"""Of the shared engine's requests."""

hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")  # a process that waits is not a slow example

gc.disable()  # what is collected stays


def pytest_collection_finish() -> None:
    """Look for garbage among what the tests make, and not after every few of them.

    To go through thousands of tests and modules time and again is a third of a run.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by the fixtures and marks that they have."""
    drawn = pytest.mark.skipif(  # others wrap and number them otherwise
        sys.version_info[:2] != DRAWN_BY, reason="pictures belong to one interpreter"
    )
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "snap_compare" in used:
            item.add_marker(drawn)
        if item.get_closest_marker("engine") or not STARTERS.isdisjoint(used):
            item.add_marker("process")


class Guard:
    """Lets no test start a process that is not marked for it."""

    def __init__(self) -> None:
        self.light = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _: object) -> None:
        if self.light and event in STARTS:
            self.light = False  # the report of the failure may start what it likes
            pytest.fail("it starts a process: mark it `process`")


guard = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch the tests that start no process, from set-up to tear-down."""
    kinds = ("process", "timing", "gpu")
    guard.light = not any(item.get_closest_marker(kind) for kind in kinds)
    try:
        return (yield)
    finally:
        guard.light = False


@pytest.fixture(scope="session", autouse=True)
def no_ones_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept between runs of a program is the tests', not the user's.

    But for the small models, which are made once for all runs.
    """
    home = tmp_path_factory.mktemp("home")
    settings = platformdirs.user_config_path("pip") / "pip.conf"
    with pytest.MonkeyPatch.context() as environment:
        for name in ("STATE", "DATA", "CONFIG"):
            environment.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        environment.setenv("XDG_CACHE_HOME", str(ROOT / "build" / "cache"))
        if settings.exists():  # to build a wheel, it takes the user's index
            environment.setenv("PIP_CONFIG_FILE", str(settings))
        yield


@pytest.fixture(scope="session", autouse=True)
def css_parsed_once() -> Iterator[None]:
    """Each app parses the styles of all widgets again: a sixth of what screens cost."""
    parse: Callable[..., list[RuleSet]] = Stylesheet._parse_rules
    parsed: dict[object, list[RuleSet]] = {}

    def parse_once(sheet: Stylesheet, *of: object, **named: object) -> list[RuleSet]:
        key = tuple(sheet._variables.items()), of, tuple(named.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *of, **named)
        return parsed[key]

    with pytest.MonkeyPatch.context() as textual:
        textual.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def migrated_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new record begins as a copy of one that went through all migrations.

    To make its tables takes 28 ms, and thousands of records are made.
    """
    made = tmp_path_factory.mktemp("record") / "new.db"
    connections.close_after_writing(connections.open_for_writing(made))

    def begin(path: Path, mode: str) -> sqlite3.Connection:
        if mode == "rwc" and not path.exists() and path.parent.exists():
            copy = made.with_name(f"{secrets.token_hex(8)}.db")
            shutil.copy(made, copy)  # with its mode
            with suppress(OSError):  # somebody else made it, or nobody may
                path.hardlink_to(copy)
            copy.unlink()
        return connect(path, mode)

    with pytest.MonkeyPatch.context() as storage:
        storage.setattr(connections, "connect", begin)
        yield


@pytest.fixture(scope="session", autouse=True)
def steady_cursor() -> Iterator[None]:
    """On a busy machine a picture may be taken while a blinking one is dark."""
    with pytest.MonkeyPatch.context() as textual:
        textual.setattr(Input.cursor_blink, "_default", False)
        yield


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared engine has its sockets and its log."""
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="session")
def loud_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the shared engine serves."""
    return make_loud(tmp_path_factory.mktemp("loud"))


@pytest.fixture(scope="session")
def shared_engine(shared_home: Path, loud_model: Path) -> Iterator[Engine]:
    """The demo's engine on real vLLM, for whoever only asks it and reads of it.

    Its model is of the same shape, but what it answers depends on all it was asked,
    and answers tell what each request took it. All that a probe can do is on: its
    limits may be turned (and are turned back), blocks are mapped, requests have a
    group header. It is served, so ``EngineSession`` adopts it and ``inferwatch`` finds
    it in the home that it has.

    They are of one group, ``pytest.mark.xdist_group("shared engine")``: one worker
    starts it, and nobody else's requests come in between.
    """
    with living_in(shared_home):
        config = shared_config(loud_model)
        engine = asyncio.run(Engine.start(config, lambda _: None))
        # As a served one's is, though it dies with us.
        msgspec.structs.replace(engine.file, hostage=False).write()
    yield engine
    with living_in(shared_home):
        asyncio.run(engine.stop())


def shared_config(model: Path, *flags: str) -> EngineConfig:
    """The shared engine's, with further flags."""
    probe = ProbeSettings(control=True, group_header=GROUP_HEADER)
    config = demo_config(probe)
    flags = (*config.flags, "--enable-per-request-metrics", *flags)
    return replace(config, model=str(model), tiny_model_dir=None, flags=flags)


@pytest.fixture
def engine(shared_engine: Engine, shared_home: Path) -> Iterator[Engine]:
    """The shared engine, its probe to be found where it is looked for."""
    with living_in(shared_home):
        yield shared_engine


@contextmanager
def living_in(home: Path) -> Iterator[None]:
    """What we start has its sockets, records and logs there."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("INFERWATCH_RUNTIME_DIR", str(home / "run"))
        environment.setenv("INFERWATCH_DB", str(home / "sessions.db"))
        environment.setenv("XDG_STATE_HOME", str(home / "state"))
        yield
