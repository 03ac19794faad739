"""Scripted profiles that look like those of a GPU, and a desk that takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from inferwatch.errors import InferwatchError, StorageError
from inferwatch.feed import ProfileProgress, ProfileStage, TakenProfile
from inferwatch.profiles.report import (
    ClassTime,
    ExecutedOn,
    Gap,
    KernelClass,
    KernelTime,
    Occurrence,
    PhaseTimes,
    ProfiledStep,
    ProfileReport,
    RankProfile,
    StepPhase,
)
from tests.inferwatch.ui.conftest import NOW_NS, S

MS, US = 1_000_000, 1_000
BEGAN_NS = NOW_NS - 30 * S
STEPS = 20
PROMPT = 7
"""Position of the step that prefills."""
DECODE_US = {
    KernelClass.GEMM: 6_200,
    KernelClass.ATTENTION: 3_400,
    KernelClass.NORM: 900,
    KernelClass.COPY: 1_700,
    KernelClass.COMMUNICATION: 800,
    KernelClass.SAMPLING: 300,
    KernelClass.KV_WRITE: 150,
    KernelClass.OTHER: 90,
}
FLOORS_US = {KernelClass.GEMM: 5_100, KernelClass.ATTENTION: 420}
GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_"
    "tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8::"
    "Params)"
)
ATTENTION = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>"


def step(place: int, slow: float = 1.0) -> ProfiledStep:
    prefills = place == PROMPT
    scale = (3.0 if prefills else 0.95 + place % 5 * 0.02) * slow
    times = {name: round(took * scale) * US for name, took in DECODE_US.items()}
    host_ns = 2_400 * US
    return ProfiledStep(
        index=30_400 + place,
        phase=StepPhase.PREFILL if prefills else StepPhase.DECODE,
        begin_ns=BEGAN_NS + place * 18 * MS + (place > PROMPT) * 30 * MS,
        duration_ns=sum(times.values()) + host_ns,
        prefill_tokens=612 * prefills,
        decode_tokens=16,
        requests=16 + prefills,
        times_ns=times,
        host_ns=host_ns,
        launches=412,
    )


def phase_of(steps: Sequence[ProfiledStep], phase: StepPhase) -> PhaseTimes:
    own = [each for each in steps if each.phase is phase]
    count = len(own)
    classes = [
        ClassTime(
            kernel_class=name,
            time_ns=sum(each.times_ns[name] for each in own) / count,
            count=took / 40,
            floor_ns=FLOORS_US[name] * US if name in FLOORS_US else None,
        )
        for name, took in DECODE_US.items()
    ]
    return PhaseTimes(
        phase=phase,
        steps=count,
        duration_ns=sum(each.duration_ns for each in own) / count,
        host_ns=sum(each.host_ns for each in own) / count,
        classes=sorted(classes, key=lambda each: -each.time_ns),
        is_launch_bound=False,
        farthest=KernelClass.ATTENTION,
    )


def kernel(name: str, of: KernelClass, count: int, took_us: int) -> KernelTime:
    return KernelTime(
        name=name,
        kernel_class=of,
        count=count,
        time_ns=count * took_us * US,
        shortest_ns=took_us * 900,
        longest_ns=took_us * 3_100,
        decode_ns=count * took_us * 860,
    )


def rank_profile(rank: int = 0, slow: float = 1.0) -> RankProfile:
    steps = [step(place, slow) for place in range(STEPS)]
    return RankProfile(
        rank=rank,
        device=ExecutedOn.GPU,
        file=f"inferwatch-one-{rank}-1.pt.trace.json.gz",
        trace_bytes=48_000_000,
        events=310_000,
        steps=steps,
        phases=[phase_of(steps, StepPhase.DECODE), phase_of(steps, StepPhase.PREFILL)],
        kernels=[
            kernel(GEMM, KernelClass.GEMM, 1_280, 71),
            kernel("ampere_bf16_s16816gemm_64x64", KernelClass.GEMM, 640, 52),
            kernel(ATTENTION, KernelClass.ATTENTION, 640, 106),
            kernel("Memcpy DtoD (ExecutedOn -> ExecutedOn)", KernelClass.COPY, 420, 81),
        ],
        other_kernels=37,
        occurrences=[
            Occurrence(
                name=GEMM,
                step=place,
                begin_ns=steps[place].begin_ns + 900 * US,
                duration_ns=(220 - place * 9) * US,
            )
            for place in (PROMPT, 2, 11)
        ],
        gaps=[
            Gap(
                step=PROMPT,
                begin_ns=steps[PROMPT].begin_ns,
                duration_ns=1_900 * US,
                doing="cudaStreamSynchronize",
            ),
            Gap(begin_ns=BEGAN_NS, duration_ns=600 * US, doing="not recorded"),
        ],
        alignment_ns=12_000,
    )


def report(ranks: int = 1) -> ProfileReport:
    """The second rank is late."""
    slow = (1.0, 1.12, 1.0, 1.01)
    return ProfileReport(
        ranks=[rank_profile(each, slow[each]) for each in range(ranks)]
    )


def taken(number: int = 1, **changes: Any) -> TakenProfile:
    profile = TakenProfile(
        number=number,
        key=f"one-{number}",
        source="demo",
        began_ns=BEGAN_NS,
        ended_ns=BEGAN_NS + S,
        steps=STEPS,
        by="ann (pid 7)",
        held_up_ns=310 * MS,
    )
    return replace(profile, **changes)


@dataclass
class ScriptedProfiles:
    """A desk that tells what a test says, and remembers what it was asked for."""

    unavailable: str | None = None
    progress: ProfileProgress = field(default_factory=ProfileProgress)
    taken: Sequence[TakenProfile] = ()
    reports: dict[str, ProfileReport] = field(default_factory=dict)
    fails: InferwatchError | None = None
    begun: list[int | None] = field(default_factory=list)
    stopped: int = 0
    read: list[str] = field(default_factory=list)

    async def begin(self, steps: int | None = None) -> None:
        if self.fails is not None:
            raise self.fails
        self.begun.append(steps)
        self.progress = ProfileProgress(
            stage=ProfileStage.PROFILING, steps=0, steps_asked=steps or STEPS
        )

    async def stop(self) -> None:
        self.stopped += 1

    async def report(self, key: str) -> ProfileReport:
        self.read.append(key)
        if key not in self.reports:
            raise StorageError(f"the traces of {key} are gone")
        return self.reports[key]


def with_profile(ranks: int = 1) -> ScriptedProfiles:
    return ScriptedProfiles(taken=(taken(),), reports={"one-1": report(ranks)})
