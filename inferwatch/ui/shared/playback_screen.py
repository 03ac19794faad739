"""What goes through the time of a session: play, pause, step, marks, bookmarks."""

import time
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from textual import on, work
from textual.binding import BindingType

from inferwatch.errors import InferwatchError
from inferwatch.feed import Playback
from inferwatch.ui.shared.help_drawer import Key
from inferwatch.ui.shared.keys import PLAYBACK_BINDINGS, PLAYBACK_KEYS
from inferwatch.ui.shared.messages import LookAgain
from inferwatch.ui.shared.moment_text import UNDERSTOOD, Scale, moment_of
from inferwatch.ui.shared.prompt import PromptScreen
from inferwatch.ui.shared.scrub import HeldKey, Scrub, mark_from, next_speed
from inferwatch.ui.shared.session_screen import SessionScreen
from inferwatch.ui.shared.time_line import TimeLine

ANYWHERE = {"skip", "go_to", "go_to_start", "bookmark"}
"""What makes sense while the present is followed, too."""
ELSEWHERE = {"speed", "engine_step", "mark"}
"""What has nowhere to go then."""


class PlaybackScreen(SessionScreen):
    """Its keys change the moment that is shown; the feed gives the picture of it."""

    BINDINGS: ClassVar[list[BindingType]] = PLAYBACK_BINDINGS

    _scrub: Scrub | None = None
    _held = HeldKey()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing to play, no keys for it."""
        playback = self.feed.playback
        elsewhere = playback is not None and not playback.at_live
        can = {
            **dict.fromkeys(ANYWHERE, playback is not None),
            **dict.fromkeys(ELSEWHERE, elsewhere),
            "pause": playback is not None and playback.playing,
            "play": playback is not None and not playback.playing,
            "go_live": playback is not None and playback.goes_on and elsewhere,
            "go_to_end": playback is not None and not playback.goes_on,
            "log": not elsewhere,
            "now": not elsewhere and self.view.cursor_ns is not None,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def more_keys(self) -> Iterable[Key]:
        """None where there is nothing to play."""
        return () if self.feed.playback is None else PLAYBACK_KEYS

    def action_pause(self) -> None:
        """Hold the view."""
        self._playback.pause()
        self._look()

    def action_play(self) -> None:
        """Let time go on; at the end of a session from its start."""
        playback = self._playback
        if not playback.goes_on and playback.position_ns >= playback.span_ns[1]:
            self._go(self._from_start(playback))
            return
        playback.play()
        self._look()

    async def _from_start(self, playback: Playback) -> None:
        await self._scrubbing.seek(playback.span_ns[0])
        playback.play()

    def action_skip(self, way: int) -> None:
        """A second back or forward, more while the key is held."""
        step_ns = self._held.step_ns(way, time.monotonic())
        self._seek(self._scrubbing.here_ns + step_ns)

    def action_speed(self, by: int) -> None:
        """The next speed."""
        self._playback.set_speed(next_speed(self._playback.speed, by))
        self._look()

    def action_engine_step(self, by: int) -> None:
        """To the next engine step, or the one before."""
        if self._can_seek():
            self._go(self._scrubbing.step(by))

    def action_mark(self, by: int) -> None:
        """To the next mark, or the one before."""
        marks, here_ns = self._playback.marks, self._scrubbing.here_ns
        mark = mark_from(marks, here_ns, by)
        if mark is None:
            which = "after" if by > 0 else "before"
            self.notify(f"no mark {which} this moment", timeout=2)
            return
        self._seek(mark.t_ns)

    def action_go_to_start(self) -> None:
        """The first moment."""
        self._seek(self._playback.span_ns[0])

    def action_go_to_end(self) -> None:
        """The last moment, and no time cursor."""
        self.view.cursor_ns = None
        self._go(self._scrubbing.go_live())

    def action_go_live(self) -> None:
        """What happens now, as it happens."""
        self.action_go_to_end()

    def action_now(self) -> None:
        """Let the time cursor go with time again."""
        self.view.cursor_ns = None
        self._look()

    @work
    async def action_go_to(self) -> None:
        """Ask for a time and go there; nothing typed is the time cursor's moment."""
        if not self._can_seek():
            return
        cursor_ns = self.view.cursor_ns
        here = "" if cursor_ns is None else "; enter alone: to the time cursor"
        ask = PromptScreen("Go to a time", UNDERSTOOD + here, self._wrong_time)
        text = await self.app.push_screen_wait(ask)
        if text is None:
            return
        if text.strip():
            self._seek(moment_of(text, self._scale()))
        elif cursor_ns is not None:
            self._seek(cursor_ns)

    @work
    async def action_bookmark(self) -> None:
        """Mark the moment shown, with a text."""
        playback = self._playback
        t_ns = playback.position_ns
        title = f"Bookmark at {self.feed.wall_text(t_ns)}"
        hint = "what happens here; it is kept with the session"
        text = await self.app.push_screen_wait(PromptScreen(title, hint, _no_text))
        if text is None:
            return
        try:
            await playback.bookmark(text.strip(), t_ns)
        except InferwatchError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
        else:
            self.notify(f"◆ {text.strip()}", title="Bookmarked", markup=False)
        self._look()

    @on(TimeLine.Pointed)
    def _pointed(self, message: TimeLine.Pointed) -> None:
        self._seek(message.t_ns)

    @property
    def _playback(self) -> Playback:
        playback = self.feed.playback
        if playback is None:  # check_action lets no key through
            raise RuntimeError("nothing to play")
        return playback

    @property
    def _scrubbing(self) -> Scrub:
        if self._scrub is None:
            self._scrub = Scrub(self._playback)
        return self._scrub

    def _seek(self, t_ns: int) -> None:
        if self._can_seek():
            self._go(self._scrubbing.seek(t_ns))

    def _can_seek(self) -> bool:
        why_not = self._playback.cannot_seek
        if why_not is not None:
            self.notify(why_not, severity="warning", timeout=4, markup=False)
        return why_not is None

    def _go(self, going: Coroutine[Any, Any, None]) -> None:
        self.run_worker(self._gone(going), group="playback", exit_on_error=False)

    async def _gone(self, going: Coroutine[Any, Any, None]) -> None:
        """Look when it is done, and whenever the screen would look anyway."""
        self._look()
        try:
            await going
        except InferwatchError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
        self._look()

    def _look(self) -> None:
        self.post_message(LookAgain())

    def _scale(self) -> Scale:
        playback = self._playback
        start_ns, end_ns = playback.span_ns
        return Scale(
            start_ns=start_ns,
            end_ns=end_ns,
            here_ns=playback.position_ns,
            wall_text=self.feed.wall_text,
        )

    def _wrong_time(self, text: str) -> str | None:
        if not text.strip() and self.view.cursor_ns is not None:
            return None
        try:
            moment_of(text, self._scale())
        except InferwatchError as error:
            return str(error)
        return None


def _no_text(text: str) -> str | None:
    return None if text.strip() else "a bookmark needs a text; esc for none"
