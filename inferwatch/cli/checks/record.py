"""Checks of the record, of the runtime directory, and of the settings file."""

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from collectors.contract.runtime_dir import CHOOSE, RuntimeDirError, socket_dir
from inferwatch.cli.checks.finding import (
    Check,
    CheckResult,
    absent,
    broken,
    limited,
    works,
)
from inferwatch.cli.servers.fleet_file import default_fleet_file, read_fleet
from inferwatch.errors import InferwatchError
from inferwatch.formatting import counted, format_bytes
from inferwatch.record.file.location import (
    default_database,
    free_floor_bytes,
    too_little_room,
)
from inferwatch.record.file.sqlite import check_sqlite
from inferwatch.record.sessions.sessions import list_sessions

AREA = "Record"
ELSEWHERE = "INFERWATCH_DB=/somewhere/else.db, or --no-record"
MOUNTS = Path("/proc/self/mounts")
NETWORKED = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "lustre", "ceph"}
"""File systems where SQLite's write-ahead log, which is shared memory, may fail."""


def _directory() -> Sequence[CheckResult]:
    path = default_database()
    place = path.parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"inferwatch")
    except OSError as error:
        says = f"{place} cannot be written: {error.strerror}"
        return [broken("directory", says, ELSEWHERE, path=str(path))]
    results = [_room(path, place)]
    if (kind := _file_system(place)) in NETWORKED:
        fix = "choose a file on a local disk with INFERWATCH_DB"
        says = f"{place} is on {kind}, where SQLite's log may fail"
        results.append(limited("file system", says, fix, kind=kind))
    return results


def _room(path: Path, place: Path) -> CheckResult:
    free = shutil.disk_usage(place).free
    says = f"{path.parent} can be written, {format_bytes(free).strip()} free"
    if too_little := too_little_room(place / path.name, free_floor_bytes()):
        return broken("directory", too_little, ELSEWHERE, path=str(path), free=free)
    return works("directory", says, path=str(path), free_bytes=free)


def _file_system(place: Path) -> str:
    """Return the type of a directory's file system; empty if unknown."""
    try:
        lines = MOUNTS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    parts = [line.split() for line in lines]
    mounts = {Path(each[1]): each[2] for each in parts if len(each) > 2}
    whole = place.resolve()
    return next((mounts[at] for at in (whole, *whole.parents) if at in mounts), "")


def _sqlite() -> Sequence[CheckResult]:
    version = sqlite3.sqlite_version
    try:
        check_sqlite()
    except InferwatchError as error:
        return [broken("SQLite", str(error), version=version)]
    return [works("SQLite", version, version=version)]


def _sessions() -> Sequence[CheckResult]:
    path = default_database()
    if not path.exists():
        return [absent("sessions", "nothing is recorded yet", path=str(path))]
    try:
        rows = list_sessions(path)
    except InferwatchError as error:
        return [broken("sessions", str(error), path=str(path))]
    except (sqlite3.Error, OSError) as error:
        fix = "`inferwatch sessions recover NEW.db` saves what can be read"
        return [broken("sessions", f"{path}: {error}", fix, path=str(path))]
    size = format_bytes(path.stat().st_size).strip()
    says = f"{counted(len(rows), 'session')} in {size}"
    return [works("sessions", says, path=str(path), sessions=len(rows))]


def _runtime() -> Sequence[CheckResult]:
    """Check the directory with the sockets of this user's probes and engines."""
    try:
        place = socket_dir()
        with tempfile.TemporaryFile(dir=place):
            pass
    except RuntimeDirError as error:
        return [broken("runtime directory", error.why, CHOOSE)]
    except OSError as error:
        says = f"{error.filename or 'it'} cannot be used: {error.strerror or error}"
        return [broken("runtime directory", says, CHOOSE)]
    return [works("runtime directory", str(place), path=str(place))]


def _settings() -> Sequence[CheckResult]:
    path = default_fleet_file()
    try:
        if not path.exists():
            return [absent("settings", f"no {path}: that is optional", path=str(path))]
        servers = len(read_fleet(path).server)
    except InferwatchError as error:
        return [broken("settings", str(error), path=str(path))]
    except OSError as error:
        return [broken("settings", f"{path}: {error.strerror}", path=str(path))]
    says = f"{path}: {counted(servers, 'server')}"
    return [works("settings", says, path=str(path), servers=servers)]


CHECKS = (
    Check(area=AREA, name="directory", find=_directory),
    Check(area=AREA, name="SQLite", find=_sqlite),
    Check(area=AREA, name="sessions", find=_sessions),
    Check(area=AREA, name="runtime directory", find=_runtime),
    Check(area=AREA, name="settings", find=_settings),
)
