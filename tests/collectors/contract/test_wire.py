"""The wire loses nothing silently and survives newer senders."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.contract import wire
from collectors.contract.collector import WireVersionError
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    Note,
    NoteKind,
    PromptBlocks,
    RequestEvent,
    Step,
    Vantage,
)

COUNTS = st.integers(0, 2**40)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    members = draw(st.lists(COUNTS, max_size=5))
    return Step(
        index=draw(COUNTS),
        start_ns=draw(COUNTS),
        end_ns=draw(COUNTS),
        duration_ns=draw(COUNTS),
        kv_used_blocks=draw(st.none() | COUNTS),
        members=members,
        scheduled=members,
        produced=members,
    )


def note(text: str) -> Note:
    return Note(t_ns=1, kind=NoteKind.BOOKMARK, text=text)


@given(st.lists(steps(), max_size=4))
def test_readings_arrive_as_they_were_sent(sent: list[Step]) -> None:
    envelope, received = wire.unpack(wire.EnvelopePacker("engine").pack(list(sent)))

    assert received == sent
    assert (envelope.source, envelope.emitted) == ("engine", len(sent))


def test_unknown_is_still_unknown_after_the_wire() -> None:
    event = RequestEvent(
        t_ns=0, kind=EventKind.ADDED, vantage=Vantage.ENGINE, request_id="a"
    )

    _, received = wire.unpack(wire.EnvelopePacker("engine").pack([event]))

    assert received == [event]
    assert received[0].prompt_tokens is None  # type: ignore[union-attr]


def test_a_reading_of_a_newer_kind_is_skipped() -> None:
    alien = msgspec.Raw(msgspec.msgpack.encode({"type": "FromTheFuture", "x": 1}))
    known = wire.encode_reading(note("kept"))

    _, received = wire.unpack(wire.EnvelopePacker("engine").pack_raw([alien, known]))

    assert received == [note("kept")]


def test_a_field_of_a_newer_version_is_skipped() -> None:
    fields = msgspec.msgpack.decode(wire.encode_reading(note("kept")))
    newer = msgspec.Raw(msgspec.msgpack.encode(fields | {"colour": "red"}))

    _, received = wire.unpack(wire.EnvelopePacker("engine").pack_raw([newer]))

    assert received == [note("kept")]


BEYOND = [1 << 63, (1 << 64) - 1, wire.LARGEST + 1, -wire.LARGEST - 1, -(1 << 63)]


def step(**fields: Any) -> Step:
    whole = {"index": 1, "start_ns": 1, "end_ns": 2, "duration_ns": 1}
    return Step(**(whole | fields))


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("field", ["prefill_tokens", "end_ns", "members"])
def test_a_reading_of_numbers_that_cannot_be_is_told_as_lost(
    field: str, number: int
) -> None:
    bad = step(**{field: [number] if field == "members" else number})

    envelope, (good, note) = wire.unpack(wire.EnvelopePacker("e").pack([bad, step()]))

    assert good == step()
    assert isinstance(note, Note)
    assert (note.kind, note.count) == (NoteKind.DROPPED, 1)
    assert note.t_ns == envelope.sent_ns
    assert wire.decode_reading(wire.encode_reading(bad)) is None


@given(st.integers(-wire.LARGEST, wire.LARGEST))
def test_a_number_that_can_be_comes_through(number: int) -> None:
    sent = step(prefill_tokens=number, end_ns=number, members=[number])

    assert wire.unpack(wire.EnvelopePacker("e").pack([sent]))[1] == [sent]


def test_hashes_and_what_people_choose_may_be_any_number() -> None:
    sent: list[AnyReading] = [
        PromptBlocks(
            t_ns=1,
            ordinal=1,
            prompt_blocks=1,
            total_blocks=1,
            hashes=[(1 << 63) - 1],
            plain=[(1 << 63) - 2],
        ),
        RequestEvent(
            t_ns=0,
            kind=EventKind.ADDED,
            vantage=Vantage.ENGINE,
            request_id="a",
            priority=-(1 << 63),
        ),
    ]

    assert wire.unpack(wire.EnvelopePacker("e").pack(sent))[1] == sent


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("field", ["seq", "sent_ns", "emitted", "dropped"])
def test_an_envelope_of_counts_that_cannot_be_is_none(field: str, number: int) -> None:
    message = msgspec.msgpack.decode(wire.EnvelopePacker("engine").pack([]))

    with pytest.raises(wire.UNREADABLE):
        wire.unpack(msgspec.msgpack.encode(message | {field: number}))


@pytest.mark.parametrize(
    "text", [b"\xa2\xff\xfe", b"\x91" * 100_000 + b"\xc0"], ids=["bytes", "deep"]
)
def test_a_reading_that_cannot_be_decoded_is_skipped(text: bytes) -> None:
    fields = msgspec.msgpack.encode({"type": "Note", "t_ns": 1, "kind": "probe"})
    odd = msgspec.Raw(b"\x84" + fields[1:] + b"\xa4text" + text)

    assert wire.decode_reading(odd) is None


def test_another_major_version_is_refused_with_what_to_do() -> None:
    message = msgspec.msgpack.decode(wire.EnvelopePacker("engine").pack([]))
    message["v"] = wire.VERSION + 1

    with pytest.raises(WireVersionError, match="install the same inferwatch"):
        wire.unpack(msgspec.msgpack.encode(message))


def lost_after(
    sender: wire.EnvelopePacker, sizes: list[int], arriving: set[int]
) -> int:
    losses = wire.LossCounter()
    losses.start(sender.stream, sender.emitted)
    for index, size in enumerate(sizes):
        envelope, _ = wire.unpack(sender.pack([note("x")] * size))
        if index in arriving:
            losses.saw(envelope)
    return losses.total


def test_nothing_is_lost_when_every_message_arrives() -> None:
    assert lost_after(wire.EnvelopePacker("engine"), [3, 2, 4], {0, 1, 2}) == 0


def test_a_vanished_message_is_counted_in_readings() -> None:
    assert lost_after(wire.EnvelopePacker("engine"), [3, 2, 4], {0, 2}) == 2


def test_what_was_emitted_before_the_subscription_is_not_a_loss() -> None:
    sender = wire.EnvelopePacker("engine")
    sender.pack([note("before")] * 5)

    assert lost_after(sender, [1], {0}) == 0


def test_readings_dropped_by_the_sender_are_losses() -> None:
    sender = wire.EnvelopePacker("engine")
    sender.dropped = 7

    assert lost_after(sender, [1, 1], {0, 1}) == 7


def test_each_loss_is_reported_once() -> None:
    sender = wire.EnvelopePacker("engine")
    losses = wire.LossCounter()
    losses.start(sender.stream, 0)
    sender.pack([note("vanishes")])
    second, third = (wire.unpack(sender.pack([note("x")]))[0] for _ in range(2))

    assert [losses.saw(second), losses.saw(third)] == [1, 0]
