"""Prints what made requests of a recorded session slow."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from inferwatch.cli.running.replay_start import ReplayStart
from inferwatch.cli.say import say, say_damage, say_json
from inferwatch.errors import UsageError
from inferwatch.metrics.load.book import BY_US
from inferwatch.metrics.load.view import FailureCount
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.story.telling import tell
from inferwatch.printing.summary.breakdown import breakdown_lines, breakdown_row
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.summary.misses import misses_lines, misses_row
from inferwatch.printing.summary.sampling import sampling_lines, sampling_row
from inferwatch.printing.summary.tenants import tenants_lines, tenants_row
from inferwatch.printing.summary.why import (
    NOT_PROBED,
    Why,
    why_json,
    why_text,
)
from inferwatch.printing.text import shortened
from inferwatch.record.connections import reading
from inferwatch.record.lookup.record_lookup import RecordLookup
from inferwatch.record.lookup.recorded_prompts import prefix_misses, tells_of_blocks
from inferwatch.record.lookup.recorded_sampling import recorded_sampling
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import find

NONE_ENDED = "No request had ended by then."
MOST = 5
"""How many of the slowest requests are told of, unless it is said."""
SHOWN = 5
"""How many requests are listed when the given id is ambiguous."""
PROBED = "SELECT 1 FROM engines WHERE session = ?"
FAILED = """
SELECT failure, count(*), coalesce(detail, ''), min(ordinal) FROM client_requests
WHERE session = ?1 AND end_ns <= ?2 AND failure NOT IN ({ours}) AND NOT EXISTS (
  SELECT 1 FROM client_requests
  WHERE session = ?1 AND end_ns <= ?2 AND first_token_ns IS NOT NULL
) GROUP BY failure ORDER BY count(*) DESC LIMIT 1
"""
"""The commonest failure, if no request was answered; ``min`` picks the first's detail.
Requests that we ended ourselves did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOptions:
    """The options of ``inferwatch why``, as the user gave them."""

    request: str | None
    at: str | None
    most: int | None
    """None where it was not given."""
    as_json: bool
    asked: tuple[str, ...] = ()
    """Flags of ``QUESTIONS``."""


def print_why(path: Path, session: str, options: WhyOptions) -> int:
    """Print the answer, and return the exit status.

    Raises:
        InferwatchError: there is no such session, request or moment.
    """
    with closing(Player.open(path, session)) as player:
        moment_ns = ReplayStart(at=options.at).moment(player)
        question = _question(options)
        if question is not None:
            now_ns = player.playback.span_ns[1] if moment_ns is None else moment_ns
            answer = QUESTIONS[question](player, path, now_ns)
            _say_answer(answer, player, now_ns, as_json=options.as_json)
            say_damage(path)
            return 0
        if options.request is None:
            most = MOST if options.most is None else options.most
            why = _slowest_requests(player, path, moment_ns, most)
        else:
            now_ns = player.playback.span_ns[1] if moment_ns is None else moment_ns
            why = _one_request(path, player.record.session_id, options.request, now_ns)
        if options.as_json:
            say_json(why_json(why))
        else:
            say(why_text(why, lambda t_ns: player.wall_text(t_ns, ms=True)))
    say_damage(path)
    return 0


class Answer(NamedTuple):
    """What is told of all requests of a session."""

    row: Summary
    """For ``--json``, beside session and moment."""
    lines: list[str]


def _say_answer(answer: Answer, player: Player, now_ns: int, *, as_json: bool) -> None:
    session_id = player.record.session_id
    if as_json:
        say_json({"session_id": session_id, "now_ns": now_ns, **answer.row})
        return
    head = f"{session_id}, as of {player.wall_text(now_ns, ms=True)}"
    say("\n".join([head, "", *answer.lines]))


def _breakdown(player: Player, path: Path, now_ns: int) -> Answer:
    """Return where the time of all requests went up to a moment."""
    asyncio.run(player.playback.seek(now_ns))
    query = SnapshotQuery(Window.SESSION, requests=False, client=False, breakdown=True)
    breakdown = player.snapshot(query).breakdown
    row: Summary = {"breakdown": breakdown_row(breakdown)}
    if breakdown is not None:
        return Answer(row, [*breakdown_lines(breakdown, player.wall_text)])
    return Answer(row, [_none_told(player, path)])


def _tenants(player: Player, path: Path, now_ns: int) -> Answer:
    """Return who asked for how much, and who made whom wait, up to a moment."""
    asyncio.run(player.playback.seek(now_ns))
    query = SnapshotQuery(
        Window.SESSION, requests=False, client=False, hardware=True, tenants=True
    )
    shown = player.snapshot(query)
    row: Summary = {"tenants": tenants_row(shown.tenants, shown.spending)}
    if shown.tenants is not None:
        return Answer(row, tenants_lines(shown.tenants))
    return Answer(row, [_none_told(player, path)])


def _misses(player: Player, path: Path, now_ns: int) -> Answer:
    """Return why prompts missed the prefix cache."""
    with reading(path) as connection:
        row = _row(player, path)
        found = prefix_misses(connection, row, now_ns)
        is_told = tells_of_blocks(connection, row)
    return Answer({"prefix": misses_row(found)}, misses_lines(found, is_told=is_told))


def _sampling(player: Player, path: Path, now_ns: int) -> Answer:
    """Return how sampling decides the length of answers."""
    with reading(path) as connection:
        found = recorded_sampling(connection, _row(player, path), now_ns)
    return Answer({"sampling": sampling_row(found)}, sampling_lines(found))


QUESTIONS: Mapping[str, Callable[[Player, Path, int], Answer]] = {
    "--all": _breakdown,
    "--tenants": _tenants,
    "--prefix": _misses,
    "--sampling": _sampling,
}
"""What answers a question about all requests up to a moment, by the flag that asks."""


def _question(options: WhyOptions) -> str | None:
    """Return what is asked of all requests; None where it is the slowest, or one.

    Raises:
        UsageError: more than one thing is asked.
    """
    flags = options.asked
    if flags and options.request is not None:
        raise UsageError(f"{flags[0]} tells of all requests: leave REQUEST out")
    if flags and options.most is not None:
        raise UsageError(f"--most is of the slowest requests: {flags[0]} tells of all")
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} are questions of their own: ask one")
    return flags[0] if flags else None


def _none_told(player: Player, path: Path) -> str:
    """Say why no request is told of: none had ended, or no engine had a probe."""
    with reading(path) as connection:
        found = connection.execute(PROBED, (_row(player, path),)).fetchone()
    return NOT_PROBED if found is None else NONE_ENDED


def _row(player: Player, path: Path) -> int:
    """Return the number of the session in its file."""
    return find(path, player.record.session_id).session


def _slowest_requests(
    player: Player, path: Path, moment_ns: int | None, most: int
) -> Why:
    """Return the slowest requests of the session up to a moment."""
    ours = ", ".join(f"'{each}'" for each in sorted(BY_US))

    now_ns = player.playback.span_ns[1] if moment_ns is None else moment_ns
    asyncio.run(player.playback.seek(now_ns))
    shown = player.snapshot(SnapshotQuery(Window.SESSION, client=False))
    session_id = player.record.session_id
    with reading(path) as connection:
        connection.execute("BEGIN")
        lookup = RecordLookup(connection, session_id)
        keys = lookup.slowest(now_ns, most)
        stories = [tell(lookup, key, now_ns) for key in keys]
        row = find(path, session_id).session
        is_probed = connection.execute(PROBED, (row,)).fetchone() is not None
        failed = connection.execute(FAILED.format(ours=ours), (row, now_ns)).fetchone()
    return Why(
        session_id=session_id,
        now_ns=now_ns,
        slowest=shown.slowest,
        refused=shown.refused,
        stacks=shown.stacks,
        stories=tuple(each for each in stories if each is not None),
        is_probed=is_probed,
        failed=FailureCount(kind=failed[0], count=failed[1], first=failed[2])
        if failed
        else None,
    )


def _one_request(path: Path, session_id: str, query: str, now_ns: int) -> Why:
    """Return the story of the request whose id contains the text."""
    with reading(path) as connection:
        connection.execute("BEGIN")
        lookup = RecordLookup(connection, session_id)
        matches = lookup.meant(query, SHOWN + 1)
        if not matches:
            raise UsageError(
                f"{session_id} has no request {shortened(query, 60)}: give the id its "
                "client sent, or a part of it"
            )
        if len(matches) > 1:
            names = ", ".join(shortened(name, 60) for _, name in matches[:SHOWN])
            more = " and more" if len(matches) > SHOWN else ""
            raise UsageError(
                f"{shortened(query, 60)} may be any of {names}{more}: give more of it"
            )
        story = tell(lookup, matches[0][0], now_ns)
    if story is None:
        raise UsageError(f"{shortened(matches[0][1], 60)} had not come by then")
    return Why(session_id=session_id, now_ns=now_ns, stories=(story,), asked=True)
