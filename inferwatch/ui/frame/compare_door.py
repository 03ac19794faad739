"""From a session to the comparison with another one: is it worse, or is that chance?"""

import asyncio
from pathlib import Path

from inferwatch.errors import InferwatchError, UsageError
from inferwatch.record.file.location import default_database
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.runs.session_before import session_before
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.messages import OpenComparison


async def compare_with_before(screen: SessionScreen) -> None:
    """With what it is held against, else with the session before it of its model."""
    record = screen.feed.record
    if record is None:
        screen.notify("it is not recorded, so there is nothing to compare", timeout=5)
        return
    database = screen.view.database or default_database()
    reference = screen.view.reference
    against = reference.session if reference is not None else None
    try:
        earlier = await asyncio.to_thread(
            _earlier, database, record.session_id, against
        )
    except InferwatchError as error:
        screen.notify(str(error), severity="error", timeout=8, markup=False)
        return
    if earlier is None:
        screen.notify(
            "no session of this model was recorded before this one: in Sessions (8) "
            "m marks any two, and c compares them",
            timeout=8,
        )
        return
    ids = (earlier, record.session_id)
    screen.post_message(OpenComparison(database=database, sessions=ids))


def _earlier(database: Path, session: str, against: str | None) -> str | None:
    """The id of the one to compare with.

    Raises:
        StorageError: the record cannot be read.
        UsageError: the session goes on.
    """
    row = find(database, session)
    if row.state is SessionState.RECORDING:
        raise UsageError(
            f"{session} is still being recorded: compare it once it has ended "
            "(a holds it against another one meanwhile)"
        )
    if against is not None and against != session:
        return against
    earlier = session_before(list_sessions(database), row)
    return None if earlier is None else earlier.id
