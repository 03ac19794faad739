"""Reads profiles of recorded sessions again, and compares two of them."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.running.profile_output import (
    NOTES,
    ProfileOptions,
    ReadProfile,
    print_blocks,
    print_profile,
)
from inferwatch.cli.say import say_damage, say_no_more, say_now
from inferwatch.errors import UsageError
from inferwatch.feed import ProfileStage
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.printing.command import command
from inferwatch.printing.destination import Destination
from inferwatch.printing.summary.profile import context_of
from inferwatch.record.replay.player import Player
from inferwatch.studies.profiles.compared import ComparedProfile, compared
from inferwatch.studies.profiles.printed import comparison_document, comparison_json


def print_recorded(
    target: str, options: ProfileOptions, destination: Destination | None
) -> int:
    """Print a profile of a recorded session, or what has changed since another.

    Raises:
        UsageError: an option cannot be used, or there is no such profile.
        StorageError: the session or its traces cannot be read.
    """
    if options.of_engines:
        raise UsageError(
            f"{options.of_engines[0]} is for an engine that runs: {target} is recorded"
        )
    if options.against is not None and options.traces is not None:
        raise UsageError("--traces copies those of one profile: leave --against out")
    path, name = session_location(target, options.database)
    with closing(Player.open(path, name)) as player:
        chosen = _chosen(player, options.number)
        if options.against is None:
            read = asyncio.run(_read(player, chosen))
            print_profile(read, options, destination)
        else:
            _compare(path, player, chosen, options, destination)
    say_damage(path)
    return 0


def _compare(
    path: Path,
    player: Player,
    chosen: SessionProfile,
    options: ProfileOptions,
    destination: Destination | None,
) -> None:
    """Print what has changed since a profile of another session, or an earlier one."""
    place, name = session_location(options.against or "", options.database)
    with closing(Player.open(place, name)) as other:
        ids = other.record.session_id, player.record.session_id
        is_same = ids[0] == ids[1] and place.resolve() == path.resolve()
        earlier_than = chosen.number if is_same else None
        earlier = _chosen(other, options.against_number, earlier_than)
        sides = [
            ComparedProfile(report=each.report, context=each.context, gpus=each.gpus)
            for each in (
                asyncio.run(_read(other, earlier)),
                asyncio.run(_read(player, chosen)),
            )
        ]
    comparison = compared(*sides)
    title = f"Profiles of {ids[0]} and {ids[1]} compared"
    blocks, facts = comparison_document(comparison), comparison_json(comparison)
    print_blocks(title, blocks, facts, options, destination)


def _chosen(
    player: Player, number: int | None, earlier_than: int | None = None
) -> SessionProfile:
    """Return the profile with a number, else the latest, or the one before another.

    Raises:
        UsageError: there is none.
    """
    session_id = player.record.session_id
    known = player.profile_desk.profiles_known
    over = [each for each in known if each.is_over and not each.failed]
    if not over:
        raise UsageError(
            f"{session_id} has no profile: `{command('profile')}` takes one of an "
            "engine that runs"
        )
    found = [each for each in over if number in {None, each.number}]
    if not found:
        numbers = ", ".join(str(each.number) for each in over)
        raise UsageError(f"{session_id} has no profile {number}: there is {numbers}")
    if number is None and earlier_than is not None:
        found = [each for each in found if each.number < earlier_than]
        if not found:
            raise UsageError(f"{session_id} has no profile before {earlier_than}")
    return found[-1]


async def _read(player: Player, profile: SessionProfile) -> ReadProfile:
    await player.playback.seek(player.playback.span_ns[1])
    desk = player.profile_desk
    report = await desk.report(profile.key, _shown_share)
    now = player.snapshot(SnapshotQuery(Window.SESSION, requests=False, client=False))
    at = player.wall_text(profile.began_ns, ms=True)
    held_up_ns = desk.shelf.held_up_ns(profile)
    context = context_of(profile, now, player.record.session_id, at, held_up_ns)
    gpus = [each for each in now.gpus if each.watched] or now.gpus
    names = (each.info.name for each in gpus)
    return ReadProfile(
        report=report,
        context=context,
        traces=desk.shelf.traces(profile),
        gpus=[*dict.fromkeys(each for each in names if each)],
    )


def _shown_share(share: float) -> None:
    if sys.stderr.isatty():
        say_now(f"{NOTES[ProfileStage.READING]}: {share:.0%}")
        if share >= 1:
            say_no_more()
