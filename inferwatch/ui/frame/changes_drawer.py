"""The drawer that compares a session with a reference: traffic, results, settings."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from collectors.contract.clock import monotonic_ns, wall_offset_ns
from inferwatch.errors import InferwatchError, UsageError
from inferwatch.feed import Feed, FeedState
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_durations,
    format_rate,
    format_share,
)
from inferwatch.metrics.changes import (
    ChangeSide,
    ComparedNumber,
    Differences,
    change_text,
    changes,
    verdict,
)
from inferwatch.metrics.configuration import Configuration, configuration_of
from inferwatch.metrics.number import Unit
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.file.location import default_database
from inferwatch.record.replay.reference import (
    BASELINE,
    YESTERDAY,
    BaselineMatch,
    Reference,
    ReferencePlace,
    baseline_of,
    read_reference,
    reference_place,
)
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.runs.sides import session_before
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.kit.drawer import Drawer, key_run
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, fit, join
from inferwatch.ui.messages import LookAgain, OpenComparison


async def compare_with_before(screen: SessionScreen) -> None:
    """Compare the session with the reference, else with its model's session before."""
    record = screen.feed.record
    if record is None:
        screen.notify("it is not recorded, so there is nothing to compare", timeout=5)
        return
    database = screen.view.database or default_database()
    reference = screen.view.reference
    against = reference.session if reference is not None else None
    try:
        earlier = await asyncio.to_thread(
            _earlier, database, record.session_id, against
        )
    except InferwatchError as error:
        screen.notify(str(error), severity="error", timeout=8, markup=False)
        return
    if earlier is None:
        screen.notify(
            "no session of this model was recorded before this one: in Sessions (8) "
            "m marks any two, and c compares them",
            timeout=8,
        )
        return
    ids = (earlier, record.session_id)
    screen.post_message(OpenComparison(database=database, sessions=ids))


def _earlier(database: Path, session: str, against: str | None) -> str | None:
    """Return the id of the session to compare with; None if there is none."""
    row = find(database, session)
    if row.state is SessionState.RECORDING:
        raise UsageError(
            f"{session} is still being recorded: compare it once it has ended "
            "(a holds it against another one meanwhile)"
        )
    if against is not None and against != session:
        return against
    earlier = session_before(list_sessions(database), row)
    return None if earlier is None else earlier.id


FORMATS: dict[Unit, Callable[[float | None], str]] = {
    Unit.PER_SECOND: format_rate,
    Unit.SHARE: format_share,
}
"""Formats by unit; seconds share a unit and the rest are counts."""
SUGGESTED = 4
NAME_WIDTH = 10
VALUE_WIDTH = 9
CHANGE_WIDTH = 14
COLUMN_WIDTH = NAME_WIDTH + 2 * VALUE_WIDTH + CHANGE_WIDTH + 2
TITLES = {ChangeSide.TRAFFIC: "traffic", ChangeSide.RESULT: "result, means"}


class ChangesDrawer(Drawer):
    """Now and the reference next to each other: traffic, results and settings."""

    DEFAULT_CSS = """
    ChangesDrawer { height: 16; min-height: 0; max-height: 70%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "screen.choose_reference", "other", tooltip="Another reference"),
        Binding("x", "screen.drop_reference", "none", tooltip="Without a reference"),
        Binding("escape", "screen.changes", "close", tooltip="Close this drawer"),
    ]

    _snapshot: Snapshot | None = None
    _reference: Reference | None = None

    def show(self, snapshot: Snapshot, reference: Reference) -> None:
        self._snapshot, self._reference = snapshot, reference
        self.redraw()

    def entries(self, width: int) -> Sequence[Line]:
        """Return the verdict, then the numbers, then the settings that differ."""
        if self._snapshot is None or self._reference is None:
            return ()
        compared = changes(self._snapshot, self._reference.snapshot)
        said = wrap(verdict(compared), max(width - 2, 20))
        sides = [_side(compared, side) for side in ChangeSide]
        beside = width >= len(sides) * COLUMN_WIDTH
        lines = _beside(sides) if beside else [row for rows in sides for row in rows]
        return [
            *((TextRun(f" {text}", "strong"),) for text in said),
            (),
            *lines,
            *_settings(compared, width),
        ]

    def heading(self, below: int) -> tuple[Line, Line]:
        snapshot, reference = self._snapshot, self._reference
        if snapshot is None or reference is None:
            return (), ()
        more = f" · {below:,} more lines below" if below else ""
        title = (
            TextRun("against ", "muted"),
            TextRun(reference.title, "strong"),
            TextRun(
                f" · {reference.span} · now: {snapshot.window.span}{more}", "muted"
            ),
        )
        chance = (("C", "is it chance?"),) if reference.session else ()
        keys = (("a", "other"), *chance, ("x", "none"), ("esc", "closes"))
        return title, join([key_run(*each) for each in keys], "  ")


def _side(compared: Differences, side: ChangeSide) -> list[Line]:
    head = (
        cells(f" {TITLES[side]}", NAME_WIDTH + 5, "muted"),
        cells("now", VALUE_WIDTH - 5, "muted", right=True),
        cells("then", VALUE_WIDTH, "muted", right=True),
        TextRun(" " * (CHANGE_WIDTH + 2)),
    )
    return [head, *(_row(each) for each in compared.numbers if each.side is side)]


def _row(change: ComparedNumber) -> Line:
    now, then = _values(change)
    ink = "warn" if change.large else ""
    text = change_text(change).removeprefix(change.number.label).strip()
    mark = "▲ " if change.large else "  "
    if not change.comparable:
        text = "" if None in {change.now, change.then} else "seen elsewhere"
    elif not change.large:
        text = "as before" if not change.ratio else text
    return (
        cells(f" {change.number.label}", NAME_WIDTH, "strong" if change.large else ""),
        cells(now, VALUE_WIDTH, ink, right=True),
        cells(then, VALUE_WIDTH, "muted", right=True),
        cells(f" {mark}{text}", CHANGE_WIDTH + 2, ink or "faint"),
    )


def _values(change: ComparedNumber) -> tuple[str, str]:
    unit = change.number.unit
    if unit is Unit.SECONDS:
        now, then = format_durations((change.now, change.then))
        return now.strip(), then.strip()
    form = FORMATS.get(unit, format_count)
    return form(change.now).strip(), form(change.then).strip()


def _beside(sides: Sequence[Sequence[Line]]) -> list[Line]:
    """Put blocks of lines side by side, padded to the same height."""
    most = max(map(len, sides))
    gap: Line = (TextRun(" " * COLUMN_WIDTH),)
    full = [[*rows, *[gap] * (most - len(rows))] for rows in sides]
    return [
        tuple(run for line in row for run in line) for row in zip(*full, strict=True)
    ]


def _settings(compared: Differences, width: int) -> list[Line]:
    """Draw settings that differ, a line each."""
    return [
        fit(
            (
                TextRun(" set-up  ", "muted"),
                TextRun(f"{each.name} ", "strong"),
                TextRun(each.now or UNKNOWN, "warn"),
                TextRun(f", then {each.then or UNKNOWN}", "muted"),
            ),
            width,
        )
        for each in compared.settings
    ]


class ReferenceControl:
    """Chooses the reference of a screen and shows the differences."""

    def __init__(self, screen: SessionScreen) -> None:
        self._screen = screen

    def show(self, snapshot: Snapshot) -> None:
        if reference := self._screen.view.reference:
            for drawer in widgets_of(self._screen, ChangesDrawer):
                drawer.show(snapshot, reference)

    async def toggle(self) -> None:
        """Open or close the drawer; without a reference ask for one first."""
        if ChangesDrawer.close_on(self._screen):
            return
        if self._screen.view.reference is None:
            await self.choose()
        else:
            self._open()

    async def choose(self) -> None:
        """Ask for a reference, read it and show the differences."""
        screen, record = self._screen, self._screen.feed.record
        database = screen.view.database or default_database()
        but = record.session_id if record else None
        wall_ns = await _wall_ns(screen.feed, database)

        present = screen.present or screen.feed.present(screen.view.source)
        shown = configuration_of(present)
        baseline = await asyncio.to_thread(_found_baseline, database, but, shown)
        first = BASELINE if baseline and baseline.exact else YESTERDAY

        def place(text: str) -> ReferencePlace:
            wanted = text.strip() or first
            return reference_place(
                database, wanted, wall_ns=wall_ns, but=but, shown=shown
            )

        def wrong(text: str) -> str | None:
            try:
                place(text)
            except InferwatchError as error:
                return str(error)
            return None

        names = await asyncio.to_thread(_suggested, database, but)
        kept = [f"{BASELINE} ({baseline.title})"] if baseline else []
        yesterday = f"{YESTERDAY} (this time a day ago)"
        hint = ", ".join((*kept, yesterday, *names))
        title = "What to hold this against: a session, or the same time yesterday"
        text = await screen.app.push_screen_wait(PromptScreen(title, hint, wrong))
        if text is None:
            return
        screen.notify("reading the reference ...", timeout=2)
        try:
            screen.view.reference = await asyncio.to_thread(
                read_reference, database, place(text), source=screen.view.source
            )
        except InferwatchError as error:
            screen.notify(str(error), severity="error", timeout=8, markup=False)
            return
        self._open()

    def drop(self) -> None:
        self._screen.view.reference = None
        ChangesDrawer.close_on(self._screen)

    def _open(self) -> None:
        if not self._screen.query(ChangesDrawer):
            ChangesDrawer().open_on(self._screen)
        self._screen.post_message(LookAgain())


def _found_baseline(
    database: Path, but: str | None, shown: Configuration | None
) -> BaselineMatch | None:
    try:
        rows = [row for row in list_sessions(database) if row.id != but]
    except InferwatchError:
        return None
    return baseline_of(rows, shown)


def _suggested(database: Path, but: str | None) -> list[str]:
    """Return the latest sessions, by id and name, except one."""
    try:
        rows = [row for row in list_sessions(database) if row.id != but]
    except InferwatchError:
        return []
    return [f"{row.id} {row.name}" if row.name else row.id for row in rows[:SUGGESTED]]


async def _wall_ns(feed: Feed, database: Path) -> int:
    """Return the Unix time of the moment shown.

    The feed is called on the thread that fills it.
    """
    if feed.state is FeedState.REPLAYING and feed.record:
        now_ns, session_id = feed.now_ns(), feed.record.session_id
        session = await asyncio.to_thread(find, database, session_id)
        return session.started_ns + now_ns
    return monotonic_ns() + wall_offset_ns() - _behind_ns(feed)


def _behind_ns(feed: Feed) -> int:
    """Return how far the view of a running session is behind the present."""
    return max(feed.present().now_ns - feed.now_ns(), 0)
