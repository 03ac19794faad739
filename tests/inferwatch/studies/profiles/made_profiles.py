"""Profiles of which each step is told by the time of its classes."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from inferwatch.printing.summary.profile import ProfileContext
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    KernelClass,
    KernelTime,
    PhaseTimes,
    ProfiledStep,
    ProfileReport,
    RankProfile,
    StepPhase,
)
from inferwatch.studies.profiles.compared import ComparedProfile

MS = 1_000_000
HOST_NS = 3 * MS


def rank(
    times_ms: Mapping[KernelClass, Sequence[float]],
    *,
    number: int = 0,
    phase: StepPhase = StepPhase.DECODE,
    tokens: int = 8,
) -> RankProfile:
    """A worker whose steps have these classes, and some host time."""
    count = len(next(iter(times_ms.values())))
    steps = []
    for at in range(count):
        of_step = {each: round(ms[at] * MS) for each, ms in times_ms.items()}
        duration_ns = sum(of_step.values()) + HOST_NS
        steps.append(
            ProfiledStep(
                index=at,
                phase=phase,
                begin_ns=at * 20 * MS,
                duration_ns=duration_ns,
                decode_tokens=tokens,
                requests=tokens,
                times_ns=of_step,
                host_ns=HOST_NS,
                launches=100,
            )
        )
    means = {each: sum(ms) / count * MS for each, ms in times_ms.items()}
    classes = [
        ClassTime(kernel_class=each, time_ns=mean, count=16, floor_ns=mean / 2)
        for each, mean in means.items()
    ]
    times = PhaseTimes(
        phase=phase,
        steps=count,
        duration_ns=sum(means.values()) + HOST_NS,
        host_ns=HOST_NS,
        classes=classes,
    )
    return RankProfile(
        rank=number,
        device=ExecutedOn.GPU,
        file=f"rank{number}.json",
        trace_bytes=1,
        events=1,
        steps=steps,
        phases=[times],
        kernels=[],
        occurrences=[],
        gaps=[],
    )


def kernel(name: str, decode_ms: int) -> KernelTime:
    return KernelTime(
        name=name,
        kernel_class=KernelClass.GEMM,
        count=1,
        time_ns=decode_ms * MS,
        shortest_ns=1,
        longest_ns=1,
        decode_ns=decode_ms * MS,
    )


def profile(
    *ranks: RankProfile,
    model: str | None = None,
    gpus: Sequence[str] = (),
    device: ExecutedOn = ExecutedOn.GPU,
    session_id: str | None = None,
) -> ComparedProfile:
    return ComparedProfile(
        report=ProfileReport(ranks=[replace(each, device=device) for each in ranks]),
        context=ProfileContext(model=model, session_id=session_id, number=1),
        gpus=gpus,
    )
