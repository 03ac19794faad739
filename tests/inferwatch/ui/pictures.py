"""Pictures of one screen at several sizes of the terminal, for one start of the app.

They lie where ``snap_compare`` puts those of one test for each size, and what differs
is in the same report.
"""

import inspect
import pickle
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

import pytest
from pytest_textual_snapshot import (  # type: ignore[import-untyped]
    PseudoApp,
    PseudoConsole,
    SVGImageExtension,
    node_to_report_path,
)
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from syrupy.location import PyTestLocation
from syrupy.types import SnapshotIndex
from textual.app import App
from textual.pilot import Pilot

from inferwatch.ui.app import InferwatchApp

SMALL, USUAL, LARGE = (80, 24), (120, 40), (200, 60)
ALL = (SMALL, USUAL, LARGE)
Size = tuple[int, int]
Act = Callable[[Pilot[Any]], Awaitable[None]]
Pictures = Callable[[App[Any], Mapping[str, Size], Act], Sequence[str]]
"""The names of the sizes at which the app does not look as it was reviewed."""


def named(*sizes: Size) -> dict[str, Size]:
    return {f"{width}x{height}": (width, height) for width, height in sizes}


def by_width(*sizes: Size) -> dict[str, Size]:
    return {f"{width}": (width, height) for width, height in sizes}


Kept = Sequence[tuple[str, tuple[str, ...], Size]]
"""What is shown, the keys pressed, and the size."""


def walks(kept: Kept, *marks: pytest.MarkDecorator) -> list[Any]:
    """For each app and keys its sizes, as parameters of a test with these marks."""
    sizes: dict[tuple[str, tuple[str, ...]], list[Size]] = {}
    for kind, keys, size in kept:
        sizes.setdefault((kind, keys), []).append(size)
    return [
        pytest.param(
            kind, keys, by_width(*each), id="-".join((kind, *keys)), marks=marks
        )
        for (kind, keys), each in sizes.items()
    ]


def soaked(views: Iterable[str], like_others: Collection[str]) -> list[Any]:
    """Views as parameters of a test, those that are like others seen in a soak."""
    return [
        pytest.param(view, marks=[pytest.mark.soak] if view in like_others else [])
        for view in views
    ]


class OneOfSeveral(SVGImageExtension):  # type: ignore[misc] # it has no types
    """Its file is that of a test whose last parameter is the size."""

    @classmethod
    def get_snapshot_name(
        cls, *, test_location: PyTestLocation, index: SnapshotIndex = 0
    ) -> str:
        name: str = super().get_snapshot_name(test_location=test_location)
        head, bracket, parameters = name.partition("[")
        others = [parameters.removesuffix("]")] if bracket else []
        return f"{head}[{'-'.join([*others, str(index)])}]"


def pictures_of(snapshot: SnapshotAssertion, node: pytest.Function) -> Pictures:
    """Takes and compares those of a test."""

    def compare(app: App[Any], sizes: Mapping[str, Size], act: Act) -> Sequence[str]:
        changed = []
        for name, picture in taken(app, sizes, act).items():
            expected = snapshot(name=name, extension_class=OneOfSeveral)
            same = expected == picture
            report(node, name, expected, picture, same=same)
            if not same:
                changed.append(name)
        return changed

    return compare


def taken(app: App[Any], sizes: Mapping[str, Size], act: Act) -> Mapping[str, str]:
    """What it looks like, brought to each size in turn after the same keys."""
    seen: dict[str, str] = {}

    async def pilot_it(pilot: Pilot[Any]) -> None:
        await act(pilot)
        for name, size in sizes.items():
            if tuple(app.size) != size:
                await pilot.resize_terminal(*size)
                if isinstance(app, InferwatchApp):
                    app.look()
            await pilot.pause()
            await pilot.wait_for_scheduled_animations()
            seen[name] = app.export_screenshot(title=app.title, simplify=True)
        app.exit()

    app.run(headless=True, auto_pilot=pilot_it, size=next(iter(sizes.values())))
    return seen


def report(
    node: pytest.Function,
    size: str,
    expected: SnapshotAssertion,
    picture: str,
    *,
    same: bool,
) -> None:
    """For the page of pytest-textual-snapshot, which shows both side by side."""
    console = Console(legacy_windows=False, force_terminal=True)
    path, line, name = node.reportinfo()
    done = list(expected.executions.values())[-1]
    told = (
        same,
        str(expected),
        picture,
        PseudoApp(PseudoConsole(console.legacy_windows, console.size)),
        path,
        line,
        f"{name} at {size}",
        inspect.getdoc(node.function) or "",
        "",
        done.final_data is not None,
    )
    at = node_to_report_path(node)
    at.with_name(f"{at.name}_{size}").write_bytes(pickle.dumps(told))
