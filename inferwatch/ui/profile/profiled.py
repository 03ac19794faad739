"""Which steps were profiled, and what is known of one of them."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import itemgetter

from textual.widget import Widget

from collectors.contract.readings import Step
from inferwatch.errors import InferwatchError
from inferwatch.feed import ProfileDesk
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.profiles.report import ProfiledStep, ProfileReport
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join_whole
from inferwatch.ui.profile.step_bars import class_parts
from inferwatch.visible import visible

READING = "profiled: reading its traces …"
UNTOLD = "profiled, but its traces do not tell of it"
ALL = "P tells more"
RETRY_S = 5.0
"""When a report that could not be read is asked for again."""
_Span = tuple[int, int, SessionProfile]
"""Of one rank: when it began, when it ended, and the profile it is a part of."""
_BEGAN = itemgetter(0)


class ProfileSpans:
    """When each rank of each engine was profiled, for looking up many steps."""

    def __init__(self, profiles: Iterable[SessionProfile]) -> None:
        self._spans: dict[tuple[str, int], list[_Span]] = {}
        for each in profiles:
            if each.failed:
                continue
            ended = {told.rank: told.t_ns for told in each.ended}
            for told in each.began:
                span = told.t_ns, ended.get(told.rank, each.last_ns), each
                self._spans.setdefault((each.source, told.rank), []).append(span)
        for spans in self._spans.values():
            spans.sort(key=_BEGAN)

    def profile_of(self, step: Step) -> SessionProfile | None:
        """Return the profile that a step began in; None if it was not profiled."""
        spans = self._spans.get((step.source, step.rank), ())
        at = bisect_right(spans, step.start_ns, key=_BEGAN) - 1
        if at < 0:
            return None
        _, ended_ns, profile = spans[at]
        return profile if step.start_ns < ended_ns else None


class ProfiledSteps:
    """Looks profiled steps up in reports, each of which is asked for once."""

    def __init__(
        self, host: Widget, desk: ProfileDesk, tell: Callable[[], None]
    ) -> None:
        """``tell`` is called when another report has come."""
        self._host, self._desk, self._tell = host, desk, tell
        self._reports: dict[str, ProfileReport | None] = {}
        """By key; None while it is read."""
        self._failed: dict[str, tuple[float, str]] = {}
        """Why one could not be read, and when that was; by key."""

    def line(self, step: Step, profile: SessionProfile, width: int) -> Line:
        """Return where a step's time went, or that it is being read."""
        if not profile.is_over:
            return (TextRun("  being profiled", "muted"),)
        key = profile.key
        failed_s, why = self._failed.get(key, (0.0, ""))
        if why and time.monotonic() - failed_s < RETRY_S:
            return fit((TextRun(f"  profiled, but {why}", "muted"),), width)
        if key not in self._reports:
            self._reports[key] = None
            self._host.run_worker(
                self._fetch(key), group="profiled", exit_on_error=False
            )
        report = self._reports[key]
        if report is None:
            return (TextRun(f"  {READING}", "muted"),)
        found = _found(report, step)
        if found is None:
            return (TextRun(f"  {UNTOLD}", "muted"),)
        more = (TextRun(ALL, "faint"),)
        parts = [
            (TextRun("profiled", "muted"),),
            *class_parts(found.times_ns, found.host_ns),
        ]
        whole = join_whole(parts, width - 3 - len(ALL) - 2, "  ")
        return (TextRun("  "), *whole, TextRun("  "), *more)

    async def _fetch(self, key: str) -> None:
        try:
            self._reports[key] = await self._desk.report(key)
        except InferwatchError as error:
            del self._reports[key]
            self._failed[key] = time.monotonic(), visible(str(error))
        self._tell()


def _found(report: ProfileReport, step: Step) -> ProfiledStep | None:
    """Return the step in the trace of the first worker that tells of it.

    Data-parallel ranks count their steps alike, so that the time decides.
    """
    for rank in report.ranks:
        for each in rank.steps:
            end_ns = each.begin_ns + each.duration_ns
            if (
                each.index == step.index
                and each.begin_ns < step.end_ns
                and end_ns > step.start_ns
            ):
                return each
    return None
