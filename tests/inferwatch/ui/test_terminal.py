"""What is written to a terminal that does not take it makes nobody wait."""

import os
from collections.abc import Iterator
from contextlib import suppress
from threading import Event

import pytest

from inferwatch.ui.shared.terminal import BACKLOG_BYTES, Output

SOON_S = 20.0
PICTURE = b"p" * (BACKLOG_BYTES // 4)
FRAMES = 100
MOMENT_S = 0.05


class Stalled:
    """A terminal that is read only when asked for: a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.gone, self.caught_up = Event(), Event()
        self.output = Output(self.writer, self.gone.set)
        self.output.caught_up = self.caught_up.set

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


def test_pictures_wait_in_bounds_and_then_are_left_out(stalled: Stalled) -> None:
    stalled.output.write(PICTURE * 2, picture=True)
    assert not stalled.output.drained(MOMENT_S)
    for _ in range(FRAMES):
        stalled.output.write(PICTURE, picture=True)

    assert not stalled.caught_up.is_set()
    assert len(stalled.read()) <= BACKLOG_BYTES + 2 * len(
        PICTURE
    )  # one in hand, one out
    assert stalled.caught_up.wait(SOON_S)


def test_what_is_no_picture_is_never_left_out(stalled: Stalled) -> None:
    for number in range(FRAMES):
        stalled.output.write(PICTURE, picture=True)
        stalled.output.write(b"<%d>" % number, picture=False)

    found = stalled.read().replace(b"p", b"")

    assert found == b"".join(b"<%d>" % number for number in range(FRAMES))


def test_pictures_left_out_before_any_was_written_are_asked_for_again(
    stalled: Stalled,
) -> None:
    with stalled.output._changed:  # the writing thread has not come round yet
        for _ in range(5):
            stalled.output.write(PICTURE, picture=True)

    assert stalled.caught_up.wait(SOON_S)
    stalled.output.write(b"whole", picture=True)
    assert stalled.read() == b"whole"


def test_one_picture_is_written_however_large_it_is(stalled: Stalled) -> None:
    stalled.output.write(PICTURE * 10, picture=True)

    assert stalled.read() == PICTURE * 10


def test_pictures_nobody_will_look_at_make_room_for_the_last_words(
    stalled: Stalled,
) -> None:
    half = b"q" * len(PICTURE) * 2
    stalled.output.write(half, picture=True)
    assert not stalled.output.drained(MOMENT_S)  # that one is half written
    stalled.output.write(PICTURE, picture=True)

    stalled.output.leave_out_pictures()
    stalled.output.write(b"goodbye", picture=False)

    assert stalled.read() == half + b"goodbye"


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
