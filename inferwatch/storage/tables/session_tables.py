"""Which tables hold rows of sessions, whichever version made them."""

import sqlite3


def session_tables(connection: sqlite3.Connection) -> list[str]:
    """The tables whose rows belong to sessions, whichever version made them."""
    query = (
        "SELECT DISTINCT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND c.name = 'session' AND t.name <> 'sessions'"
    )
    return [name for (name,) in connection.execute(query)]
