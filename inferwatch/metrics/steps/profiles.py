"""The profiles that were taken in a session: which steps, and where their traces are.

The ranks of an engine are profiled together, and each tells of its own part.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Profile, ProfileState
from collectors.probe.profiling import LONGEST_S, SWITCH_S

MOST_KEPT = 50
LONGEST_NS = round((LONGEST_S + 2 * SWITCH_S) * NS_PER_S)
"""One that has lasted longer is over, though nobody has told of its end."""
LOST = "its engine was lost"
TOGETHER_NS = 5 * NS_PER_S
"""Ranks that begin within this time were asked at once."""


class SessionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of one engine, by all its ranks."""

    number: int
    """Counts those of the session, from 1."""
    began: tuple[Profile, ...]
    """At least one, in order of receipt."""
    ended: tuple[Profile, ...] = ()
    lost_ns: int | None = None
    """When its engine was lost while it was on."""

    @property
    def key(self) -> str:
        """Its name for lookups: what the first rank's traces begin with."""
        return self.began[0].prefix

    @property
    def source(self) -> str:
        return self.began[0].source

    @property
    def by(self) -> str | None:
        return self.began[0].by

    @property
    def began_ns(self) -> int:
        return min(each.t_ns for each in self.began)

    @property
    def ended_ns(self) -> int | None:
        """When the last rank had written its traces; None while it is on."""
        if not self.is_over:
            return None
        return max((each.t_ns for each in self.ended), default=self.lost_ns)

    @property
    def last_ns(self) -> int:
        """When it was over, or is at the latest."""
        ended_ns = self.ended_ns
        return self.began_ns + LONGEST_NS if ended_ns is None else ended_ns

    @property
    def is_over(self) -> bool:
        ended = {each.rank for each in self.ended}
        return self.lost_ns is not None or {each.rank for each in self.began} <= ended

    @property
    def failed(self) -> bool:
        """Whether no rank has written its traces."""
        return self.is_over and all(
            each.state is ProfileState.FAILED for each in self.ended
        )

    @property
    def is_imported(self) -> bool:
        """Whether somebody else took it, and its trace was imported later."""
        return not self.began[0].steps_asked

    @property
    def steps(self) -> int | None:
        """Steps of the rank that made most; None where no rank has counted them."""
        known = (each.steps for each in self.ended if each.steps is not None)
        return max(known, default=None)

    @property
    def why(self) -> str | None:
        """Why it ended early, or failed; None if it did not."""
        told = next((each.why for each in self.ended if each.why), None)
        return LOST if self.lost_ns is not None and not self.ended else told

    @property
    def switch_ns(self) -> int | None:
        """How long switching it off held up the rank that took longest."""
        known = (e.switch_ns for e in self.ended if e.switch_ns is not None)
        return max(known, default=None)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of its traces begin with."""
        return tuple(each.prefix for each in self.began)

    @property
    def directory(self) -> str:
        """Where the engine wrote them, on its own host."""
        return self.began[0].directory

    @property
    def realtime_offset_ns(self) -> int:
        """What to take from the wall clock of its traces for session time."""
        latest = (self.ended or self.began)[-1]
        return latest.realtime_ns - latest.t_ns


class ProfileLog:
    """Keeps the latest profiles of a session; without ``most`` all of them."""

    def __init__(self, most: int | None = MOST_KEPT) -> None:
        self._kept: deque[SessionProfile] = deque(maxlen=most)
        self._count = 0

    @property
    def every(self) -> tuple[SessionProfile, ...]:
        """The latest, oldest first, one that is on included."""
        return tuple(self._kept)

    def take(self, profile: Profile) -> None:
        """Take the beginning or the end of one rank's part.

        An end without a beginning, of a profile that began before the session or that
        could not be begun, has no steps: it is left out.
        """
        if profile.state is ProfileState.STARTED:
            self._begin(profile)
            return
        for at in reversed(range(len(self._kept))):  # names may repeat
            each = self._kept[at]
            if any(_are_same(begun, profile) for begun in each.began):
                if not any(_are_same(ended, profile) for ended in each.ended):
                    ended = (*each.ended, profile)
                    self._kept[at] = msgspec.structs.replace(each, ended=ended)
                return

    def lost(self, source: str, t_ns: int) -> None:
        """End what was on in an engine that is gone; all engines if it is empty."""
        for at, each in enumerate(self._kept):
            if source in {"", each.source} and not each.is_over:
                self._kept[at] = msgspec.structs.replace(each, lost_ns=t_ns)

    def saved(self) -> list[SessionProfile]:
        return list(self._kept)

    def restore(self, saved: Iterable[SessionProfile]) -> None:
        self._kept.extend(saved)
        self._count = self._kept[-1].number if self._kept else 0

    def _begin(self, profile: Profile) -> None:
        for at, each in enumerate(self._kept):
            if _is_other_rank(each, profile):
                began = (*each.began, profile)
                self._kept[at] = msgspec.structs.replace(each, began=began)
                return
        self._count += 1
        self._kept.append(SessionProfile(number=self._count, began=(profile,)))


def _are_same(one: Profile, other: Profile) -> bool:
    """Whether two readings are of the same part of a profile."""
    return (one.source, one.rank, one.prefix) == (
        other.source,
        other.rank,
        other.prefix,
    )


def _is_other_rank(profile: SessionProfile, begun: Profile) -> bool:
    """Whether another rank of a profile begins."""
    return (
        profile.source == begun.source
        and all(each.rank != begun.rank for each in profile.began)
        and abs(begun.t_ns - profile.began_ns) < TOGETHER_NS
    )
