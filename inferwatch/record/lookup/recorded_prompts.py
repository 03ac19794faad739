"""The prompts of a recorded session with the hashes of their blocks, as scheduled."""

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from inferwatch.metrics.cache.miss_finder import EndedPrompt, MissFinder
from inferwatch.metrics.cache.misses import PrefixMisses
from inferwatch.record.tables.codec import SELECT_SOURCES

_ROWS = (
    "SELECT source, member, t_ns, ordinal FROM prompt_blocks "
    "WHERE session = ? AND block_tokens > 0 ORDER BY ordinal"
)
_ROW = (
    "SELECT rank, block_tokens, prompt_blocks, one_in, salt, hashes "
    "FROM prompt_blocks WHERE session = ? AND ordinal = ?"
)
_BLOCK_TOKENS = (
    "SELECT source, max(block_tokens) FROM prompt_blocks "
    "WHERE session = ? AND block_tokens > 0 GROUP BY source"
)
_SIZES = """
SELECT source, max(kv_block_tokens) FROM engines
WHERE session = ?1 AND kv_block_tokens > 0
AND source IN (SELECT source FROM block_maps WHERE session = ?1)
AND source NOT IN (
  SELECT source FROM engine_settings
  WHERE session = ?1 AND json_extract(settings, '$.enable_prefix_caching') = 0
) GROUP BY source
"""
"""Of servers with a block map and prefix caching: all prompts may have been shorter."""
_REQUESTS = """
SELECT source, member, request_id, scheduled_ns, first_token_ns,
       coalesce(engine_finished_ns, finished_ns) AS end_ns,
       coalesce(engine_output_tokens, output_tokens, 0) AS output_tokens,
       prompt_tokens, cached_tokens, lora, media_items
FROM requests
WHERE session = ?1 AND scheduled_ns IS NOT NULL AND prompt_tokens > 0 AND end_ns <= ?2
ORDER BY scheduled_ns, ordinal
"""
_RESETS = (
    "SELECT source, rank, t_ns FROM block_maps WHERE session = ? AND cleared = 1 "
    "ORDER BY ordinal"
)
_ENDED_BEFORE_NS = 60 * 1_000_000_000
"""How much earlier than its hashes were told a request may have ended. Ordinals begin
anew when an engine is started again."""


class _Lists(msgspec.Struct):
    """What is packed in a row of ``prompt_blocks``."""

    hashes: list[int] = msgspec.field(default_factory=list)
    places: list[int] = msgspec.field(default_factory=list)
    plain: list[int] = msgspec.field(default_factory=list)


_LISTS = msgspec.json.Decoder(_Lists)


class _Request(NamedTuple):
    source: int
    member: int | None
    request_id: str
    scheduled_ns: int
    first_token_ns: int | None
    end_ns: int
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int | None
    lora: str | None
    media_items: int | None


def prefix_misses(
    connection: sqlite3.Connection, session: int, now_ns: int
) -> PrefixMisses | None:
    """Return why prompts that ended by ``now_ns`` missed the prefix cache.

    None where none had, or no probe told of their blocks.
    """
    sources = dict(connection.execute(SELECT_SOURCES, (session,)))
    resets = [
        (sources[source], rank, t_ns)
        for source, rank, t_ns in connection.execute(_RESETS, (session,))
    ]
    finder, told = MissFinder(resets), False
    for prompt in ended_prompts(connection, session, now_ns, sources):
        told = True
        finder.take(prompt)
    return finder.result() if told else None


def tells_of_blocks(connection: sqlite3.Connection, session: int) -> bool:
    """Return whether a probe of the session told of the blocks of prompts."""
    return bool(_sizes(connection, session))


def _sizes(connection: sqlite3.Connection, session: int) -> dict[int, int]:
    """Return the tokens of a block by number of the source."""
    sizes = dict(connection.execute(_SIZES, (session,)))
    return sizes | dict(connection.execute(_BLOCK_TOKENS, (session,)))


def ended_prompts(
    connection: sqlite3.Connection,
    session: int,
    now_ns: int,
    sources: dict[int, str],
) -> Iterator[EndedPrompt]:
    """Yield the prompts in the order they were scheduled; one of them in memory."""
    sizes = _sizes(connection, session)
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for source, member, t_ns, ordinal in connection.execute(_ROWS, (session,)):
        rows[source, member].append((t_ns, ordinal))
    for values in connection.execute(_REQUESTS, (session, now_ns)):
        request = _Request(*values)
        size = sizes.get(request.source)
        if size is None:
            continue  # of a server whose blocks nobody told of
        row = None
        if request.member is not None:
            told = rows.get((request.source, request.member), ())
            row = _row_of(connection, session, request, told)
        yield _prompt(request, sources[request.source], size, row)


def _row_of(
    connection: sqlite3.Connection,
    session: int,
    request: _Request,
    told: Any,  # noqa: ANN401 - moments and ordinals
) -> tuple[Any, ...] | None:
    """Return what was told of the request's blocks, right after its end."""
    near = min(told, key=lambda each: abs(each[0] - request.end_ns), default=None)
    if near is None or abs(near[0] - request.end_ns) > _ENDED_BEFORE_NS:
        return None
    row: tuple[Any, ...] = connection.execute(_ROW, (session, near[1])).fetchone()
    return row


def _prompt(
    request: _Request, source: str, size: int, row: tuple[Any, ...] | None
) -> EndedPrompt:
    rank, block_tokens, blocks, one_in, salt, packed = row or (
        *(0, size, request.prompt_tokens // size, 1, None),
        None,
    )
    lists = _Lists() if packed is None else _LISTS.decode(zlib.decompress(packed))
    is_begun = request.first_token_ns is not None or request.output_tokens
    return EndedPrompt(
        key=f"{source}/{request.request_id}",
        source=source,
        rank=rank,
        scheduled_ns=request.scheduled_ns,
        ready_ns=(request.first_token_ns or request.end_ns) if is_begun else None,
        end_ns=request.end_ns,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        block_tokens=block_tokens,
        prompt_blocks=blocks,
        hashes=lists.hashes,
        places=lists.places,
        one_in=one_in,
        plain=lists.plain,
        salt=salt,
        lora=request.lora,
        media=bool(request.media_items),
    )
