"""The section of a session's page on its latest profile, and where others are."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from inferwatch.errors import StorageError
from inferwatch.formatting import counted
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.command import command
from inferwatch.printing.document import Block, PrintedHeading, Sentence
from inferwatch.printing.export.recording import Recording
from inferwatch.printing.summary.profile import context_of, profile_document
from inferwatch.record.profiles.recorded_desk import RecordedProfileDesk
from inferwatch.record.replay.recorded_recall import RecordedRecall

LEVEL = 3
"""Of headings below that of the section."""


def profile_section(
    recording: Recording, snapshot: Snapshot, clock: Callable[[int], str]
) -> Iterator[Block]:
    """Yield what the latest profile tells; nothing if none was taken."""
    over = [each for each in snapshot.profiles if each.is_over and not each.failed]
    if not over:
        return
    profile = over[-1]
    yield PrintedHeading("Profile of steps")
    row = recording.session
    recall = RecordedRecall(recording.database, row.id, lambda: row.duration_ns)
    desk = RecordedProfileDesk(recording.database, row, lambda: row.duration_ns, recall)
    try:
        report = asyncio.run(desk.report(profile.key))
    except StorageError as error:
        yield Sentence(text=f"Profile {profile.number} cannot be read: {error}.")
    else:
        context = context_of(
            profile,
            snapshot,
            row.id,
            clock(profile.began_ns),
            desk.shelf.held_up_ns(profile),
        )
        yield from map(_beneath, profile_document(report, context))
    if (others := len(over) - 1) > 0:
        session, number = recording.session.id, over[-2].number
        words = ("profile", session, "--number", number)
        typed = command(*words, database=recording.database)
        text = f"{counted(others, 'earlier profile')}; the last of them: {typed}"
        yield Sentence(text=text, is_aside=True)


def _beneath(block: Block) -> Block:
    """Return a block of a document as one of a section of the page."""
    match block:
        case PrintedHeading():
            return replace(block, level=LEVEL)
        case Sentence(is_lead=True):
            return replace(block, is_lead=False, tone="")
        case _:
            return block
