"""Which time of day a moment of a recorded session was."""

import sqlite3
from bisect import bisect_right
from datetime import datetime

from collectors.clock import NS_PER_S
from inferwatch.storage.sessions.sessions import SessionRow

ANCHORS = (
    "SELECT t_ns, wall_ns FROM clock_anchors JOIN sessions USING (session, boot_id) "
    "WHERE session = ? ORDER BY t_ns"
)
"""Of the host that recorded; other hosts' clocks may differ."""


class WallClock:
    """Goes by the last time both clocks were read; else by the session's start."""

    def __init__(self, connection: sqlite3.Connection, session: SessionRow) -> None:
        self._session = session
        self._anchors = [(0, session.started_ns)]
        self.look_again(connection)

    def look_again(self, connection: sqlite3.Connection) -> None:
        """The clocks of a session that goes on may have parted."""
        asked = (self._session.session,)
        self._anchors = connection.execute(ANCHORS, asked).fetchall() or self._anchors

    def text(self, t_ns: int) -> str:
        """HH:MM:SS, local."""
        at = bisect_right(self._anchors, t_ns, key=lambda anchor: anchor[0])
        then_ns, wall_ns = self._anchors[max(at - 1, 0)]
        wall_s = (wall_ns + t_ns - then_ns) / NS_PER_S
        return datetime.fromtimestamp(wall_s).astimezone().strftime("%H:%M:%S")
