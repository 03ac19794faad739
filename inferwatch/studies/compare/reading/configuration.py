"""How a session was set up: engine, versions, hardware, load plan."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LoadKind
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.printing.summary.session import ENGINE_FIELDS
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.studies.compare.reading.live_limits import limits_turned
from inferwatch.studies.compare.reading.span import ComparedSpan

OF_THE_RUN = {"run_id", "url", "uds", "model", "headers"}
"""Fields of a plan that say where and as which run it went, not what it sent."""

CACHE_SALT = "cache_salt"
"""Separates the prefix caches of runs; its value does not matter."""
LOAD = "load "
RATE = f"{LOAD}rate_per_s"
WAYS = ("rate_per_s", "rates")
"""Fields of a plan of an open loop that say its rate; without one it is measured."""
FLAG = "flag "
"""Prefix of engine settings, named as vLLM's flags."""
REPEATED_FLAGS = {
    *ENGINE_FIELDS,
    "block_size",
    "data_parallel_size",
    "enable_prefix_caching",
    "pipeline_parallel_size",
    "tensor_parallel_size",
}
"""Flags that the engine's own fields repeat."""
NOTHING: tuple[object, ...] = (None, (), [], {})
Configuration = Mapping[str, str | None]
"""Setting values by name; None is unknown, and "none" means not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingSetting:
    """A setting that differs between sessions, with each session's value."""

    name: str
    values: tuple[str | None, ...]


def configuration(
    connection: sqlite3.Connection, row: SessionRow, span: ComparedSpan | None = None
) -> Configuration:
    """The recorded settings; limits are those in force during ``span``."""
    return {
        "inferwatch": row.inferwatch_version,
        **_engine(connection, row.session),
        **_limits(connection, row.session, span),
        "engines": _text(_count(connection, row.session)),
        **_flags(connection, row.session),
        **_gpus(connection, row.session),
        **_plan(connection, row),
    }


def differing(each: Sequence[Configuration]) -> list[DifferingSetting]:
    names = list(dict.fromkeys(name for settings in each for name in settings))
    found = []
    for name in names:
        values = tuple(settings.get(name) for settings in each)
        if name.startswith(FLAG) and len(set(values) - {None}) < 2:
            continue  # recordings of version 9 and earlier have no flags
        if len(set(values)) > 1 and not _is_default_or_unknown(name, values):
            found.append(DifferingSetting(name=name, values=values))
    return found


def setting_name(setting: str) -> str:
    """The name as vLLM has it: ``max_num_seqs`` of ``engine max_num_seqs``."""
    return setting.removeprefix("engine ").removeprefix(FLAG)


def _is_default_or_unknown(name: str, values: Sequence[str | None]) -> bool:
    """Whether all sessions with a known value of this load setting have its default."""
    field = name.removeprefix(LOAD)
    ever = _text(_plan_defaults().get(field)) if field != name else None
    return ever is not None and set(values) == {None, ever}


def _engine(connection: sqlite3.Connection, session: int) -> dict[str, str | None]:
    """The settings of the last engine that the session saw."""
    row = connection.execute(
        f"SELECT {', '.join(ENGINE_FIELDS)} FROM engines WHERE session = ? "  # noqa: S608  our own names
        "ORDER BY ordinal DESC LIMIT 1",
        (session,),
    ).fetchone()
    values = dict(zip(ENGINE_FIELDS, row or [None] * len(ENGINE_FIELDS), strict=True))
    if (ranks := _ranks(connection, session)) > (values["data_parallel"] or 1):
        values["data_parallel"] = ranks
    return {f"engine {name}": _text(value) for name, value in values.items()}


def _limits(
    connection: sqlite3.Connection, session: int, span: ComparedSpan | None
) -> dict[str, str | None]:
    """Limits that were changed at run time, as if the engine had started with them."""
    turned = limits_turned(connection, session, span)
    return {f"engine {name}": text for name, text in turned.items()}


def _flags(connection: sqlite3.Connection, session: int) -> dict[str, str | None]:
    """The last recorded flags; a flag that is not set is "none"."""
    row = connection.execute(
        "SELECT settings FROM engine_settings WHERE session = ? "
        "ORDER BY ordinal DESC LIMIT 1",
        (session,),
    ).fetchone()
    flags: dict[str, object] = json.loads(row[0]) if row else {}
    return {
        f"{FLAG}{name}": "none" if value is None else _text(value)
        for name, value in flags.items()
        if name not in REPEATED_FLAGS
    }


def _ranks(connection: sqlite3.Connection, session: int) -> int:
    """The number of data-parallel ranks seen; the size they report may be 1 each."""
    (highest,) = connection.execute(
        "SELECT max(rank) FROM engines WHERE session = ?", (session,)
    ).fetchone()
    return 1 if highest is None else int(highest) + 1


def _count(connection: sqlite3.Connection, session: int) -> int:
    (count,) = connection.execute(
        "SELECT count(DISTINCT source || '/' || rank) FROM engines WHERE session = ?",
        (session,),
    ).fetchone()
    return int(count)


def engine_gpus(connection: sqlite3.Connection, session: int) -> set[str]:
    """UUIDs of the GPUs that engines run on; empty if unknown.

    As reported by the engines, else the GPUs on which their processes use memory.
    """
    rows = connection.execute("SELECT gpus FROM engines WHERE session = ?", (session,))
    reported = {uuid for (uuids,) in rows for uuid in json.loads(uuids)}
    if reported:
        return reported
    users = connection.execute(
        "SELECT DISTINCT name, memory_bytes FROM gpu_processes "
        "JOIN sources USING (session, source) WHERE session = ?",
        (session,),
    ).fetchall()
    if not users:
        return set()
    pids = connection.execute(
        "SELECT pid FROM engines WHERE session = ?1 UNION SELECT pid "
        "FROM host_processes WHERE session = ?1 AND role IN ('core', 'worker')",
        (session,),
    )
    own = {str(pid) for (pid,) in pids}
    return {uuid for uuid, memory in users if own & json.loads(memory).keys()}


def _gpus(connection: sqlite3.Connection, session: int) -> dict[str, str | None]:
    """Models and drivers of the engines' GPUs, or of all GPUs if those are unknown."""
    rows = connection.execute(
        "SELECT uuid, name, profile, driver FROM gpus "
        "WHERE session = ? AND name IS NOT NULL ORDER BY ordinal",
        (session,),
    ).fetchall()
    ours = engine_gpus(connection, session)
    latest = {row[0] or place: row for place, row in enumerate(rows)}
    found = [row for uuid, row in latest.items() if uuid in ours or not ours]
    models = Counter(" ".join(filter(None, row[1:3])) for row in found)
    return {
        "gpu": ", ".join(
            f"{count} × {model}" if count > 1 else model
            for model, count in models.items()
        )
        or None,
        "gpu driver": ", ".join(dict.fromkeys(row[3] for row in found if row[3]))
        or None,
        "gpu power limit": _power_limits(connection, session, ours),
    }


def startup_stages(connection: sqlite3.Connection, session: int) -> dict[str, float]:
    """Seconds that each stage of the last engine's start took its slowest worker."""
    rows = connection.execute(
        "WITH reports AS (SELECT source, rank, t_ns FROM engines WHERE session = ?1) "
        "SELECT stage, max(duration_ns) FROM startup_stages AS stages "
        "WHERE session = ?1 AND source = (SELECT source FROM startup_stages "
        "WHERE session = ?1 ORDER BY ordinal DESC LIMIT 1) "
        # An engine reports itself at the end of its start.
        "AND NOT EXISTS (SELECT 1 FROM reports AS one JOIN reports AS later "
        "USING (source, rank) WHERE source = stages.source AND rank = stages.rank "
        "AND one.t_ns > stages.t_ns AND later.t_ns > one.t_ns) "
        "GROUP BY stage ORDER BY min(ordinal)",
        (session,),
    )
    return {stage: duration_ns / NS_PER_S for stage, duration_ns in rows}


def _power_limits(
    connection: sqlite3.Connection, session: int, ours: set[str]
) -> str | None:
    """All power limits during the session, so that a changed one shows as two."""
    rows = connection.execute(
        "SELECT DISTINCT name, power_limit_w FROM gpu_samples "
        "JOIN sources USING (session, source) "
        "WHERE session = ? AND power_limit_w IS NOT NULL",
        (session,),
    )
    limits = {round(watts) for uuid, watts in rows if uuid in ours or not ours}
    return ", ".join(f"{watts} W" for watts in sorted(limits)) or None


def _plan(connection: sqlite3.Connection, row: SessionRow) -> dict[str, str | None]:
    """The recorded load plan; fields missing in a plan of ours have their default."""
    plans = load_plans(connection, row.session)
    try:
        plan = json.loads(plans[-1].plan) if plans else None
    except ValueError:
        return {}
    if not isinstance(plan, dict):
        return {}
    if row.imported_from is None:
        plan = _plan_defaults() | plan
        if not any(plan.get(name) for name in WAYS):
            plan["rate_per_s"] = _measured_rate(connection, row.session, plan)
    body = plan.get("extra_body")
    if isinstance(body, dict):  # each trial of a tune has its own salt
        plan["extra_body"] = {k: v for k, v in body.items() if k != CACHE_SALT}
    return {
        f"{LOAD}{name}": _text(value)
        for name, value in plan.items()
        if name not in OF_THE_RUN
    }


def _measured_rate(
    connection: sqlite3.Connection, session: int, plan: Mapping[str, object]
) -> float | None:
    """The rate that a plan without one came to have, if it is an open loop."""
    rates = connection.execute(
        "SELECT rate_per_s FROM load_events JOIN sources USING (session, source) "
        "WHERE session = ? AND name = ? AND kind = ? ORDER BY ordinal LIMIT 1",
        (session, plan.get("run_id"), LoadKind.RATE),
    ).fetchone()
    return rates[0] if rates else None


@cache
def _plan_defaults() -> dict[str, object]:
    """The default of each field of a load plan."""
    defaults = {
        each.encode_name: msgspec.to_builtins(_default(each))
        for each in msgspec.structs.fields(LoadPlan)
    }
    return {name: value for name, value in defaults.items() if value not in NOTHING}


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {"type", "low", "high"}:
        low, high = value["low"], value["high"]
        return f"{low}" if low == high else f"{low} to {high}, evenly"
    return value if isinstance(value, str) else json.dumps(value)
