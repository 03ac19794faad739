"""What we need of Textual beyond its documentation: an upgrade fails here first."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from textual import _compositor
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver

UPDATES = {
    _compositor.LayoutUpdate: {"strips", "region"},
    _compositor.ChopsUpdate: {"chops", "spans", "chop_ends"},
}
CALLS: list[tuple[Callable[..., Any], set[str]]] = [
    (App._display, {"screen", "renderable"}),
    (App.get_driver_class, set()),
    (App.get_line_filters, set()),
    (Driver.__init__, {"app", "debug", "mouse", "size"}),
    (LinuxDriver.write, {"data"}),
    (LinuxDriver.run_input_thread, set()),
    (LinuxDriver.start_application_mode, set()),
    (LinuxDriver.stop_application_mode, set()),
    (LinuxDriver.disable_input, set()),
    (LinuxDriver.close, set()),
]


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.__name__)
def test_an_update_of_a_picture_says_what_changed(update: type) -> None:
    assert issubclass(update, _compositor.CompositorUpdate)
    assert set(inspect.signature(update).parameters) >= UPDATES[update]


@pytest.mark.parametrize(
    ("call", "names"), CALLS, ids=[call.__qualname__ for call, _ in CALLS]
)
def test_what_the_terminal_replaces_is_called_as_it_was(
    call: Callable[..., Any], names: set[str]
) -> None:
    assert set(inspect.signature(call).parameters) - {"self"} == names


def test_a_picture_is_written_as_what_its_update_renders() -> None:
    render = _compositor.CompositorUpdate.render_segments

    assert set(inspect.signature(render).parameters) == {"self", "console"}


def test_a_console_knows_how_many_colours_its_terminal_has() -> None:
    assert hasattr(Console(), "_color_system")
