"""Two profiles compared: the mean step of each phase, by class and by kernel.

Both are of one engine at other settings, or of before and after a change. Of several
workers the slowest is compared, as each step waits for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from inferwatch.formatting import counted, format_rate, model_name
from inferwatch.printing.summary.profile import ProfileContext
from inferwatch.profiles.report import (
    ClassTime,
    KernelClass,
    PhaseTimes,
    ProfiledStep,
    ProfileReport,
    RankProfile,
    StepPhase,
)
from inferwatch.studies.compare.statistics.significance import Interval
from inferwatch.studies.profiles.step_bootstrap import difference_interval

MOST_KERNELS = 10
ALIKE = 0.1
"""Share by which batches of two phases may differ to be called alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedProfile:
    """One of two profiles, and where it comes from."""

    report: ProfileReport
    context: ProfileContext
    gpus: Sequence[str] = ()
    """Their names, each once, where they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChange:
    """A part of the mean step, before and after."""

    before_ns: float
    after_ns: float
    interval_ns: Interval | None
    """Of the difference (95%); None where the steps are too few."""

    @property
    def difference_ns(self) -> float:
        return self.after_ns - self.before_ns

    @property
    def is_open(self) -> bool:
        """Whether there may be no difference, by the interval."""
        return (
            self.interval_ns is None or self.interval_ns[0] <= 0 <= self.interval_ns[1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChange:
    """A class in the mean step, before and after."""

    kernel_class: KernelClass | None
    """None for the host's time."""
    time: TimeChange
    floor_before_ns: float | None = None
    floor_after_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChange:
    """A kernel or operator in the mean step; None where it is not among the listed."""

    name: str
    kernel_class: KernelClass
    before_ns: float | None
    after_ns: float | None

    @property
    def difference_ns(self) -> float:
        return (self.after_ns or 0) - (self.before_ns or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanChange:
    """A number of the mean step, before and after; None where traces do not tell it."""

    before: float | None
    after: float | None

    @property
    def is_alike(self) -> bool:
        """Whether both are about the same, or one is not known."""
        if self.before is None or self.after is None:
            return True
        most = max(self.before, self.after)
        return abs(self.after - self.before) <= ALIKE * most


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """The mean step of a phase, before and after."""

    phase: StepPhase
    steps: tuple[int, int]
    step: TimeChange
    classes: Sequence[ClassChange]
    """The largest change first; the host's time is one of them."""
    launches: MeanChange
    graph_launches: MeanChange
    tokens: MeanChange
    requests: MeanChange
    kernels: Sequence[KernelChange]
    """Those that came, went or changed most, the largest change first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileComparison:
    """Two profiles, what has changed between them, and why that may mean nothing."""

    before: ComparedProfile
    after: ComparedProfile
    phases: Sequence[PhaseChange]
    """Those that both have."""
    unlike: Sequence[str]
    """Why they do not compare at all."""
    doubts: Sequence[str]


def compared(before: ComparedProfile, after: ComparedProfile) -> ProfileComparison:
    """Compare two profiles, phase by phase."""
    old, new = before.report.slowest, after.report.slowest
    phases = [*_phases(old, new)] if old is not None and new is not None else []
    return ProfileComparison(
        before=before,
        after=after,
        phases=phases,
        unlike=[*_unlike(before, after)],
        doubts=[*_doubts(before, after, phases)],
    )


def _phases(before: RankProfile, after: RankProfile) -> Iterator[PhaseChange]:
    for phase in StepPhase:
        sides = _Side.of(before, phase), _Side.of(after, phase)
        if sides[0] is not None and sides[1] is not None:
            yield _phase(phase, sides[0], sides[1])


@dataclass(frozen=True, slots=True)
class _Side:
    """A phase of one profile."""

    rank: RankProfile
    times: PhaseTimes
    steps: Sequence[ProfiledStep]

    @classmethod
    def of(cls, rank: RankProfile, phase: StepPhase) -> "_Side | None":
        times = next((e for e in rank.phases if e.phase is phase and e.steps), None)
        if times is None:
            return None
        return cls(rank, times, [each for each in rank.steps if each.phase is phase])

    def series(self, kernel_class: KernelClass | None) -> list[float]:
        if kernel_class is None:
            return [each.host_ns for each in self.steps]
        return [each.times_ns.get(kernel_class, 0) for each in self.steps]

    def class_time(self, kernel_class: KernelClass) -> ClassTime:
        """Return a class; one that is left out has no time."""
        return next(
            (e for e in self.times.classes if e.kernel_class is kernel_class),
            ClassTime(kernel_class=kernel_class, time_ns=0, count=0),
        )

    def mean(self, number: Callable[[ProfiledStep], float]) -> float | None:
        return fmean(map(number, self.steps)) if self.steps else None

    def kernels(self) -> dict[tuple[str, KernelClass], float]:
        """Return the time of each listed kernel in the mean step of this phase.

        Steps that do not only decode are one sum: of two such phases none is known.
        """
        decodes = self.times.phase is StepPhase.DECODE
        others = [e for e in self.rank.phases if e.phase is not StepPhase.DECODE]
        if not decodes and len(others) > 1:
            return {}
        times = {
            (each.name, each.kernel_class): (
                each.decode_ns if decodes else each.time_ns - each.decode_ns
            )
            / self.times.steps
            for each in self.rank.kernels
        }
        return {key: time_ns for key, time_ns in times.items() if time_ns}


def _phase(phase: StepPhase, before: _Side, after: _Side) -> PhaseChange:
    named = [e.kernel_class for e in (*before.times.classes, *after.times.classes)]
    classes = [_class_change(each, before, after) for each in dict.fromkeys(named)]
    host = _time_change(
        (before.times.host_ns, after.times.host_ns),
        before.series(None),
        after.series(None),
    )
    classes.append(ClassChange(kernel_class=None, time=host))
    classes.sort(key=lambda each: -abs(each.time.difference_ns))

    def means(number: Callable[[ProfiledStep], float]) -> MeanChange:
        return MeanChange(before=before.mean(number), after=after.mean(number))

    return PhaseChange(
        phase=phase,
        steps=(before.times.steps, after.times.steps),
        step=_time_change(
            (before.times.duration_ns, after.times.duration_ns),
            [each.duration_ns for each in before.steps],
            [each.duration_ns for each in after.steps],
        ),
        classes=classes,
        launches=means(lambda each: each.launches),
        graph_launches=means(lambda each: each.graph_launches),
        tokens=means(lambda each: each.prefill_tokens + each.decode_tokens),
        requests=means(lambda each: each.requests),
        kernels=_kernel_changes(before, after),
    )


def _class_change(
    kernel_class: KernelClass, before: _Side, after: _Side
) -> ClassChange:
    old, new = before.class_time(kernel_class), after.class_time(kernel_class)
    return ClassChange(
        kernel_class=kernel_class,
        time=_time_change(
            (old.time_ns, new.time_ns),
            before.series(kernel_class),
            after.series(kernel_class),
        ),
        floor_before_ns=old.floor_ns,
        floor_after_ns=new.floor_ns,
    )


def _time_change(
    means_ns: tuple[float, float], before: Sequence[float], after: Sequence[float]
) -> TimeChange:
    return TimeChange(
        before_ns=means_ns[0],
        after_ns=means_ns[1],
        interval_ns=difference_interval(before, after),
    )


def _kernel_changes(before: _Side, after: _Side) -> list[KernelChange]:
    old, new = before.kernels(), after.kernels()
    changes = [
        KernelChange(
            name=key[0],
            kernel_class=key[1],
            before_ns=old.get(key),
            after_ns=new.get(key),
        )
        for key in {**old, **new}
    ]
    changes.sort(key=lambda each: -abs(each.difference_ns))
    return changes[:MOST_KERNELS]


# Whether they compare.


def _unlike(before: ComparedProfile, after: ComparedProfile) -> Iterator[str]:
    old, new = before.context.model, after.context.model
    if old and new and old != new:
        yield f"two models ({model_name(old)} before, {model_name(new)} after)"
    was, now = (
        sorted({each.device.value for each in side.report.ranks})
        for side in (before, after)
    )
    if was == now and before.gpus and after.gpus:
        was, now = [*before.gpus], [*after.gpus]
    if was and now and was != now:
        devices = f"{', '.join(was)} before, {', '.join(now)} after"
        yield f"two kinds of devices ({devices})"


def _doubts(
    before: ComparedProfile, after: ComparedProfile, phases: Sequence[PhaseChange]
) -> Iterator[str]:
    for each in phases:
        if not (each.tokens.is_alike and each.requests.is_alike):
            yield (
                f"other batches: a mean {each.phase} step had {_batch(each, 'before')} "
                f"before, {_batch(each, 'after')} after"
            )
    workers = len(before.report.ranks), len(after.report.ranks)
    if workers[0] != workers[1]:
        yield f"{counted(workers[0], 'worker')} before, {workers[1]:,} after"
    for name, profile in (("before", before), ("after", after)):
        for problem in profile.report.problems:
            yield f"{name}: {problem}"


def _batch(phase: PhaseChange, side: str) -> str:
    tokens, requests = (
        format_rate(getattr(each, side)).strip()
        for each in (phase.tokens, phase.requests)
    )
    return f"{tokens} tokens of {requests} requests"
