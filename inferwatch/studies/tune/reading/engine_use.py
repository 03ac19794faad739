"""What the engine's own readings say of a trial: what bound it, and what it took."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.span import ComparedSpan

STEPS = (
    "SELECT bound_by, sum(duration_ns), sum(preemptions), max(kv_used_blocks) "
    "FROM steps WHERE session = ? AND end_ns >= ? AND end_ns < ? GROUP BY bound_by"
)
DEVICE = (
    "SELECT device, num_kv_blocks FROM engines WHERE session = ? "
    "ORDER BY ordinal DESC LIMIT 1"
)
GPU_MEMORY = (
    "SELECT name, max(memory_used_bytes) FROM gpu_samples "
    "JOIN sources USING (session, source) WHERE session = ? AND t_ns >= ? AND t_ns < ? "
    "AND memory_used_bytes IS NOT NULL GROUP BY name"
)
PROCESS_MEMORY = (
    "SELECT max(bytes) FROM (SELECT sum(rss_bytes) AS bytes FROM host_processes "
    "JOIN host_samples USING (session, ordinal) WHERE session = ? "
    "AND t_ns >= ? AND t_ns < ? AND role IN ('api', 'core', 'worker') "
    "GROUP BY ordinal)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """All that is told without the client; empty where no probe listened."""

    device: str | None = None
    kv_peak_usage: float | None = None
    preemptions: int | None = None
    bound_share: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None


def engine_use(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> EngineUse:
    """Of the engine in that time."""
    where = session, span.start_ns, span.end_ns
    rows = connection.execute(STEPS, where).fetchall()
    device, blocks = connection.execute(DEVICE, (session,)).fetchone() or (None, None)
    spent_ns = sum(ns for _, ns, _, _ in rows)
    used = max((most for *_, most in rows if most is not None), default=None)
    return EngineUse(
        device=device,
        kv_peak_usage=used / blocks if used is not None and blocks else None,
        preemptions=sum(many for _, _, many, _ in rows) if rows else None,
        bound_share={bound: ns / spent_ns for bound, ns, _, _ in rows if spent_ns},
        memory_bytes=_memory(connection, where),
    )


def _memory(connection: sqlite3.Connection, where: tuple[int, int, int]) -> int | None:
    """The most at once: of the engine's GPUs, else of its processes."""
    ours = engine_gpus(connection, where[0])
    held = dict(connection.execute(GPU_MEMORY, where).fetchall())
    told = [int(each) for uuid, each in held.items() if uuid in ours or not ours]
    if told:
        return sum(told)
    (most,) = connection.execute(PROCESS_MEMORY, where).fetchone()
    return int(most) if most is not None else None
