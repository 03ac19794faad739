"""Which session another one is held against, when people name none."""

from collections.abc import Iterable

from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.session_state import SessionState


def session_before(rows: Iterable[SessionRow], row: SessionRow) -> SessionRow | None:
    """The latest before it of the same model that has ended and saw requests."""
    going = row.state is SessionState.RECORDING
    if going or row.deleted_ns is not None or row.model is None:
        return None
    earlier = [
        each
        for each in rows
        if each.session < row.session
        and each.model == row.model
        and each.state is not SessionState.RECORDING
        and each.deleted_ns is None
        and (each.requests or each.client_requests)
    ]
    return max(earlier, key=lambda each: each.session, default=None)
