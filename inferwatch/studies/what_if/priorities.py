"""Priorities of a recorded run: those it had, or those it is asked about.

A record under first come, first served has none, as the engine heeds none: who has
which is then given by the name of a class, a header's value or an adapter.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from inferwatch.errors import UsageError
from inferwatch.formatting import counted
from inferwatch.loadgen.plan.option import PRIORITY
from inferwatch.printing.text import shortened
from inferwatch.studies.what_if.past_requests import PastRequest
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.visible import visible

MOST_SAID = 60
"""Columns of what was typed that a message shows."""
MOST_NAMES = 8
"""Names that are listed where a wrong one was given."""
GRAMMAR = "'NAME=NUMBER ...', such as 'chat=0 batch=10'"


def read_priorities(text: str) -> dict[str, int]:
    """Parse priorities by name; lower numbers go first.

    Raises:
        UsageError: the text is malformed; the message shows the syntax.

    >>> read_priorities("chat=0 'night batch'=10")
    {'chat': 0, 'night batch': 10}
    """
    try:
        words = shlex.split(text)
        pairs = [word.rpartition("=") for word in words]
        given = {name: int(value) for name, _, value in pairs if name}
    except ValueError:
        given, words = {}, [text]
    if len(given) < len(words) or not given:
        said = shortened(text, MOST_SAID)
        raise UsageError(f"{said!r} are no priorities: write {GRAMMAR}")
    for name, number in given.items():
        if not PRIORITY.hold(number):
            said = shortened(name, MOST_SAID)
            raise UsageError(f"the priority of {said!r} must fit into 64 bits")
    return given


def with_priorities(run: RecordedRun, given: Mapping[str, int]) -> RecordedRun:
    """Return the run whose requests are asked about with these priorities by name.

    The first of class, header and adapter that is named counts; requests without any
    keep what they had.

    Raises:
        UsageError: no request has one of the names.
    """
    if not given:
        return run
    found = Counter(name for past in run.requests for name in past.names)
    if missing := [name for name in given if name not in found]:
        known = [
            shortened(name, MOST_SAID) for name, _ in found.most_common(MOST_NAMES)
        ]
        there = f"there are {', '.join(known)}" if known else "none have any"
        raise UsageError(
            "no request's class, header or adapter is "
            f"{shortened(missing[0], MOST_SAID)!r}: {there}"
        )
    requests = tuple(replace(past, given=_given(past, given)) for past in run.requests)
    return replace(run, requests=requests, given=dict(given))


def _given(past: PastRequest, given: Mapping[str, int]) -> int | None:
    return next((given[name] for name in past.names if name in given), None)


def priorities_in(requests: Iterable[PastRequest]) -> list[int]:
    """Return the priorities of the measured requests, best first."""
    return sorted({past.asked_priority for past in requests if past.counts})


def given_text(run: RecordedRun) -> str | None:
    """Return which priorities were given, and of how many requests none was."""
    if not run.given:
        return None
    said = ", ".join(f"{visible(name)} {number}" for name, number in run.given.items())
    rest = [past for past in run.requests if past.counts and past.given is None]
    if not rest:
        return f"Priorities as given: {said}"
    kept = ", ".join(map(str, sorted({past.priority for past in rest})))
    others = counted(len(rest), "request")
    return f"Priorities as given: {said}; {others} without such a name: {kept}"
