"""News is told once."""

import pytest

from collectors.contract.readings import Note, NoteKind
from inferwatch.ui.frame.note_announcer import NoteAnnouncer


def note(t_ns: int, kind: NoteKind) -> Note:
    return Note(t_ns=t_ns, kind=kind, text=f"at {t_ns}")


def test_a_note_is_told_once() -> None:
    announcer = NoteAnnouncer()
    first, second = note(1, NoteKind.DROPPED), note(2, NoteKind.PROBE)

    assert announcer.news([first]) == [first]
    assert announcer.news([first, second]) == [second]
    assert announcer.news([first, second]) == []


@pytest.mark.parametrize("kind", [NoteKind.STAGE, NoteKind.LOST, NoteKind.STARTED])
def test_what_has_a_place_of_its_own_is_not_told(kind: NoteKind) -> None:
    assert NoteAnnouncer().news([note(1, kind)]) == []


def test_of_many_at_once_a_few_are_told() -> None:
    """A fleet of hundreds is lost when its Prometheus is."""
    lost = [note(at, NoteKind.STOPPED) for at in range(1, 101)]

    told = NoteAnnouncer().told(lost)

    assert told == ["at 1", "at 2", "at 3", "at 4", "and 96 more like these"]
