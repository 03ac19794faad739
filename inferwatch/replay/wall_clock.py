"""Which time of day a moment of a recorded session was."""

import sqlite3
from bisect import bisect_right
from datetime import datetime

from collectors.clock import NS_PER_S
from inferwatch.storage.sessions import SessionRow

ANCHORS = (
    "SELECT t_ns, wall_ns FROM clock_anchors JOIN sessions USING (session, boot_id) "
    "WHERE session = ? ORDER BY t_ns"
)
"""Of the host that recorded; other hosts' clocks may differ."""


class WallClock:
    """Goes by the last time both clocks were read; else by the session's start."""

    def __init__(self, connection: sqlite3.Connection, session: SessionRow) -> None:
        known = connection.execute(ANCHORS, (session.session,)).fetchall()
        self._anchors = known or [(0, session.started_ns)]

    def text(self, t_ns: int) -> str:
        """HH:MM:SS, local."""
        at = bisect_right(self._anchors, t_ns, key=lambda anchor: anchor[0])
        then_ns, wall_ns = self._anchors[max(at - 1, 0)]
        wall_s = (wall_ns + t_ns - then_ns) / NS_PER_S
        return datetime.fromtimestamp(wall_s).astimezone().strftime("%H:%M:%S")
