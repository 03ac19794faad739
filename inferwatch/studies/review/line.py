"""One line of a review: a setting, what was seen of it, and what should change."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from inferwatch.metrics.findings.facts import setting_text
from inferwatch.metrics.findings.finding import Knob
from inferwatch.studies.review.setup import Setup
from inferwatch.studies.what_if.setting import SettingChange


class LineVerdict(StrEnum):
    """What a line of a review says of a setting."""

    GOOD = "good"
    """Nothing that was seen speaks against it."""
    CHANGE = "change"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """A change of the set-up."""

    text: str
    """What to do, as an imperative sentence."""
    flag: str | None = None
    """The flag as vLLM spells it, with its value where what was seen says one."""
    gain: str | None = None
    """What it would gain, by floors or a prediction; None where that is not known."""
    untold: str | None = None
    """Why the gain is not known, where a prediction was tried."""
    risk: str
    change: SettingChange | None = None
    """The same, where the load can be predicted under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of one line."""

    verdict: LineVerdict
    seen: str
    """What was seen, with numbers; what is not known, and why."""
    advised: Advised | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """One line as it is shown."""

    name: str
    setting: str | None
    """The setting that it is about, by vLLM's flag; None where there is none."""
    present: str | None
    """The present value as text; None where it is not told."""
    judged: Judgement


class ReviewLine(ABC):
    """A line of the checklist, which judges the facts of a set-up."""

    NAME: ClassVar[str]
    SETTING: ClassVar[str] = ""
    """The setting that it is about, by vLLM's flag."""

    @abstractmethod
    def judge(self, setup: Setup) -> Judgement:
        """Return what is to be said; a change only where nothing seen contradicts."""

    def present(self, setup: Setup) -> str | None:
        return setting_text(setup.setting(self.SETTING))

    def reviewed(self, setup: Setup) -> Reviewed:
        return Reviewed(
            name=self.NAME,
            setting=self.SETTING or None,
            present=self.present(setup),
            judged=self.judge(setup),
        )


def good(seen: str) -> Judgement:
    return Judgement(verdict=LineVerdict.GOOD, seen=seen)


def unknown(why: str) -> Judgement:
    return Judgement(verdict=LineVerdict.UNKNOWN, seen=why)


def change(seen: str, advised: Advised) -> Judgement:
    return Judgement(verdict=LineVerdict.CHANGE, seen=seen, advised=advised)


def by_knob(
    knob: Knob, risk: str, *, gain: str | None = None, to: SettingChange | None = None
) -> Advised:
    """Return the advice of a finding."""
    return Advised(text=knob.text, flag=knob.flag, gain=gain, risk=risk, change=to)


def value_of(knob: Knob) -> int | None:
    """Return the whole number that a knob's flag has; None without one."""
    *_, last = (knob.flag or "").split() or [""]
    return int(last) if last.isdecimal() else None


NO_STEPS = "no probe tells the engine's steps"
