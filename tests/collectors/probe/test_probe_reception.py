"""One subscriber's view of one probe: order, gaps, duplicates, losses."""

import pytest

from collectors.contract.clock import anchor
from collectors.contract.collector import WireVersionError
from collectors.contract.readings import AnyReading, ClockAnchor, Note, NoteKind, Totals
from collectors.contract.wire import EnvelopePacker, encode_reading
from collectors.probe.hello import (
    LIVE,
    RING,
    Hello,
    Role,
    Standing,
    decode_hello,
    encode_hello,
)
from collectors.probe.reception import HELD_LIMIT, ProbeMessage, Reception


class Probe:
    """Emits numbered notes, two to an envelope, and remembers them all."""

    def __init__(self) -> None:
        self.sender = EnvelopePacker("e")
        self.sent: list[bytes] = []

    def emit(self) -> bytes:
        first = self.sender.emitted
        self.sent.append(self.sender.pack([note(first), note(first + 1)]))
        return self.sent[-1]

    def hello(
        self, *, ring_seq: int, standing: tuple[tuple[int, Note], ...] = ()
    ) -> bytes:
        return encode_hello(
            Hello(
                source="e",
                stream=self.sender.stream,
                seq=self.sender.seq,
                ring_seq=ring_seq,
                ring_bytes=0,
                ring_accounted=2 * ring_seq,
                accounted=self.sender.emitted + self.sender.dropped,
                role=Role.CORE,
                pid=1,
                anchor=anchor(),
                totals=Totals(t_ns=1),
                standing=[
                    Standing(seq=seq, reading=encode_reading(reading))
                    for seq, reading in standing
                ],
            )
        )


def note(number: int) -> Note:
    return Note(t_ns=number, kind=NoteKind.BOOKMARK, text=str(number))


def readings_of(heard: list[ProbeMessage]) -> list[AnyReading]:
    return [reading for passage in heard for reading in passage.readings()]


def numbers(heard: list[ProbeMessage]) -> list[int]:
    notes = [each for each in readings_of(heard) if isinstance(each, Note)]
    return [note.t_ns for note in notes if note.count is None]


def losses(heard: list[ProbeMessage]) -> list[int | None]:
    notes = [each for each in readings_of(heard) if isinstance(each, Note)]
    return [note.count for note in notes if note.count is not None]


@pytest.fixture
def probe() -> Probe:
    return Probe()


def test_ring_and_live_join_without_gap_or_duplicate(probe: Probe) -> None:
    reception = Reception(backfill=True)
    live, ring = reception.topics
    for _ in range(4):
        probe.emit()

    heard = reception.hear([live, probe.sent[3]])  # subscribed just before the hello
    heard += reception.hear([ring, probe.hello(ring_seq=1)])
    heard += reception.hear([live, probe.emit()])  # overtakes the ring
    heard += reception.hear([ring, probe.sent[1], probe.sent[2]])
    heard += reception.hear([ring, probe.sent[3]])
    heard += reception.hear([live, probe.emit()])

    assert numbers(heard) == list(range(2, 12))
    assert losses(heard) == []


def test_without_backfill_the_past_stays_past(probe: Probe) -> None:
    reception = Reception(backfill=False)
    live, hello = reception.topics
    probe.sender.dropped = 5
    probe.emit()

    heard = reception.hear([hello, probe.hello(ring_seq=0)])
    heard += reception.hear([live, probe.emit()])

    assert isinstance(readings_of(heard)[0], ClockAnchor)
    assert numbers(heard) == [2, 3]
    assert losses(heard) == []


def test_what_still_holds_comes_first_unless_the_ring_has_it(probe: Probe) -> None:
    for _ in range(3):
        probe.emit()
    standing = ((0, note(0)), (2, note(4)))

    reception = Reception(backfill=True)
    _, ring = reception.topics
    with_ring = reception.hear([ring, probe.hello(ring_seq=1, standing=standing)])
    reception = Reception(backfill=False)
    _, hello = reception.topics
    without = reception.hear([hello, probe.hello(ring_seq=1, standing=standing)])

    assert numbers(with_ring) == [0]
    assert numbers(without) == [0, 4]


def test_messages_that_vanish_are_counted_in_readings(probe: Probe) -> None:
    reception = Reception(backfill=False)
    live, hello = reception.topics
    reception.hear([hello, probe.hello(ring_seq=0)])
    for _ in range(3):
        probe.emit()

    heard = reception.hear([live, probe.emit()])

    assert losses(heard) == [6]
    assert numbers(heard) == [6, 7]


def test_readings_the_probe_had_to_drop_are_counted(probe: Probe) -> None:
    reception = Reception(backfill=False)
    live, hello = reception.topics
    reception.hear([hello, probe.hello(ring_seq=0)])
    probe.sender.dropped = 3

    assert losses(reception.hear([live, probe.emit()])) == [3]


def test_a_lost_piece_of_the_ring_holds_nothing_up_for_ever(probe: Probe) -> None:
    reception = Reception(backfill=True)
    live, ring = reception.topics
    for _ in range(3):
        probe.emit()
    heard = reception.hear([ring, probe.hello(ring_seq=0)])
    heard += reception.hear([ring, probe.sent[0]])

    for _ in range(HELD_LIMIT + 1):
        heard += reception.hear([live, probe.emit()])

    assert losses(heard) == [4]
    assert numbers(heard)[:3] == [0, 1, 6]


def test_another_major_version_is_a_clear_error() -> None:
    with pytest.raises(WireVersionError, match="version 9"):
        decode_hello(b"\x81\xa1v\x09")


def test_nobody_else_hears_the_answer() -> None:
    topics = [Reception(backfill=True).topics for _ in range(2)]

    assert topics[0][0] == topics[1][0] == LIVE
    assert topics[0][1] != topics[1][1]
    assert topics[0][1].startswith(RING)


def test_a_line_that_was_down_is_made_good_from_the_ring(probe: Probe) -> None:
    reception = Reception(backfill=True)
    live, ring = reception.topics
    heard = reception.hear([ring, probe.hello(ring_seq=0)])
    heard += reception.hear([live, probe.emit()])
    for _ in range(2):
        probe.emit()  # and nobody hears

    again = [ring, probe.hello(ring_seq=0)]
    reception = reception.renewed(again)
    heard += reception.hear(again)
    heard += reception.hear([ring, *probe.sent])
    heard += reception.hear([live, probe.emit()])

    assert numbers(heard) == list(range(8))
    assert losses(heard) == []


def test_what_the_ring_has_no_more_is_lost_and_counted(probe: Probe) -> None:
    reception = Reception(backfill=True)
    live, ring = reception.topics
    heard = reception.hear([ring, probe.hello(ring_seq=0)])
    heard += reception.hear([live, probe.emit()])
    for _ in range(3):
        probe.emit()

    again = [ring, probe.hello(ring_seq=3)]
    reception = reception.renewed(again)
    heard += reception.hear(again)
    heard += reception.hear([ring, probe.sent[3]])

    assert numbers(heard) == [0, 1, 6, 7]
    assert losses(heard) == [4]


def test_another_process_in_its_place_is_told_from_its_beginning() -> None:
    first, second = Probe(), Probe()
    reception = Reception(backfill=True)
    live, ring = reception.topics
    reception.hear([ring, first.hello(ring_seq=0)])
    reception.hear([live, first.emit()])
    second.emit()

    again = [ring, second.hello(ring_seq=0)]
    reception = reception.renewed(again)
    heard = reception.hear(again) + reception.hear([ring, second.sent[0]])

    assert numbers(heard) == [0, 1]
    assert losses(heard) == []
