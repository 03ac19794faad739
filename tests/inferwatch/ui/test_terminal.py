"""What is written to a terminal that does not take it makes nobody wait."""

import os
from collections.abc import Iterator
from contextlib import suppress
from threading import Event

import pytest

from inferwatch.ui.terminal.terminal import PATIENCE_S, DrawingPace, Output

SOON_S = 20.0
PICTURE = b"p" * 64 * 1024
FRAMES = 100
MOMENT_S = 0.05


class Stalled:
    """A terminal that is read only when asked for: a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.gone, self.emptied = Event(), Event()
        self.output = Output(self.writer, self.gone.set)
        self.output.emptied = self.emptied.set

    def read(self) -> bytes:
        """All there is, once it is all there."""
        os.set_blocking(self.reader, False)
        found = b""
        done = False
        while not done:
            done = self.output.drained(MOMENT_S)
            with suppress(BlockingIOError):
                while data := os.read(self.reader, 1 << 20):
                    found += data
        return found

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def stalled() -> Iterator[Stalled]:
    terminal = Stalled()
    yield terminal
    terminal.close()


def test_what_is_no_picture_is_never_left_out(stalled: Stalled) -> None:
    for number in range(FRAMES):
        stalled.output.write(PICTURE, picture=True)
        stalled.output.write(b"<%d>" % number, picture=False)
    stalled.output.leave_out_pictures()

    found = stalled.read().replace(b"p", b"")

    assert found == b"".join(b"<%d>" % number for number in range(FRAMES))


def test_it_is_told_when_all_is_taken(stalled: Stalled) -> None:
    stalled.output.write(PICTURE * 2, picture=True)
    assert not stalled.output.drained(MOMENT_S)
    assert not stalled.emptied.is_set()
    assert not stalled.output.empty

    stalled.read()

    assert stalled.emptied.wait(SOON_S)
    assert stalled.output.empty


def test_one_picture_is_written_however_large_it_is(stalled: Stalled) -> None:
    stalled.output.write(PICTURE * 10, picture=True)

    assert stalled.read() == PICTURE * 10


def test_the_rest_of_a_picture_makes_room_for_the_last_words(
    stalled: Stalled,
) -> None:
    row = b"\x1b[1;1H" + b"r" * 100
    stalled.output.write(row * 4000, picture=True)
    assert not stalled.output.drained(MOMENT_S)  # that one is half written
    stalled.output.write(row, picture=True)

    stalled.output.leave_out_pictures()
    stalled.output.write(b"goodbye", picture=False)
    found = stalled.read().removesuffix(b"goodbye")

    assert found == row * (len(found) // len(row))
    assert len(found) < 4000 * len(row)


def test_a_terminal_that_is_no_more_is_noticed_and_takes_anything(
    stalled: Stalled,
) -> None:
    os.close(stalled.reader)

    stalled.output.write(PICTURE, picture=True)

    assert stalled.gone.wait(SOON_S)
    assert stalled.output.drained(SOON_S)


def test_a_terminal_that_refuses_to_wait_gets_everything(stalled: Stalled) -> None:
    os.set_blocking(stalled.writer, False)

    stalled.output.write(PICTURE * 4, picture=True)

    assert stalled.read() == PICTURE * 4


LITTLE, MUCH = 100, 100_000


def test_a_terminal_that_answers_gets_the_next_picture_when_it_has_the_last() -> None:
    pace = DrawingPace()
    pace.answered(0.0)
    assert pace.drawn(MUCH, 0.0)
    assert not pace.may_draw(0.1, empty=True)

    pace.answered(0.2)

    assert pace.may_draw(0.2, empty=True)


def test_little_is_sent_after_little_without_waiting() -> None:
    pace = DrawingPace()
    pace.answered(0.0)
    pace.drawn(LITTLE, 0.0)

    assert pace.may_draw(0.1, empty=True)
    assert not pace.drawn(LITTLE, 0.1)  # one question at a time
    assert pace.answered(0.2)  # and now for what came after it


def test_an_answer_that_never_comes_is_not_waited_for_for_ever() -> None:
    pace = DrawingPace()
    pace.answered(0.0)
    pace.drawn(MUCH, 0.0)

    assert not pace.may_draw(PATIENCE_S - 1, empty=True)
    assert pace.may_draw(PATIENCE_S + 1, empty=True)


def test_of_a_terminal_that_does_not_answer_only_what_it_takes_counts() -> None:
    pace = DrawingPace()
    assert not pace.drawn(MUCH, 0.0)

    assert not pace.may_draw(0.1, empty=False)
    assert pace.may_draw(0.2, empty=True)


def test_a_slow_line_is_told_of_while_it_is_slow() -> None:
    pace = DrawingPace()
    for second in range(0, 20, 2):
        assert pace.may_draw(second, empty=True)
        pace.drawn(MUCH, second)
        assert not pace.may_draw(second + 0.5, empty=False)

    assert pace.every_s(20.0) == 2.0
    pace.drawn(LITTLE, 20.0)
    for tenth in range(200, 400):
        assert pace.may_draw(tenth / 10, empty=True)
        pace.drawn(LITTLE, tenth / 10)

    assert pace.every_s(40.0) is None
