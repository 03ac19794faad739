"""When a trace was taken, by which it is tied to a session that was recorded then."""

from collections.abc import Sequence

import msgspec

from inferwatch.errors import StorageError
from inferwatch.profiles.trace_file import ProfileTrace


class TraceSpan(msgspec.Struct, frozen=True, kw_only=True):
    """When a trace was taken, by the wall clock, and of which worker."""

    begin_ns: int
    end_ns: int
    rank: int
    """Of the first worker, if it is of several."""
    events: int


class SpanJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks the process that reads traces when one was taken."""

    file: str


def span_of(traces: Sequence[ProfileTrace]) -> TraceSpan:
    """Return when the workers of one file executed something.

    Raises:
        StorageError: none did.
    """
    filled = [each for each in traces if len(each.begin_ns)]
    if not filled:
        names = ", ".join(each.name for each in traces)
        raise StorageError(f"{names} has no kernel, operator or step")
    return TraceSpan(
        begin_ns=min(int(each.begin_ns.min()) for each in filled),
        end_ns=max(int((each.begin_ns + each.duration_ns).max()) for each in filled),
        rank=filled[0].rank or 0,
        events=sum(each.events for each in filled),
    )
