"""What a profile of two GPU workers comes to, the second a little late."""

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

MS = 1_000_000
GEMM_KERNEL = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT_and_much_more_of_its_name"


def steps(count: int = 3) -> list[ProfiledStep]:
    return [
        ProfiledStep(
            index=300 + at,
            phase=StepPhase.DECODE,
            begin_ns=at * 10 * MS,
            duration_ns=10 * MS,
            decode_tokens=8,
            requests=8,
            times_ns={KernelClass.GEMM: 4 * MS, KernelClass.ATTENTION: 3 * MS},
            host_ns=3 * MS,
            launches=100,
        )
        for at in range(count)
    ]


def rank(number: int = 0, *, late_ns: int = 0) -> RankProfile:
    decode = PhaseTimes(
        phase=StepPhase.DECODE,
        steps=3,
        duration_ns=10 * MS + late_ns,
        host_ns=3 * MS,
        classes=[
            ClassTime(
                kernel_class=KernelClass.GEMM,
                time_ns=4 * MS,
                count=64,
                floor_ns=3.5 * MS,
            ),
            ClassTime(
                kernel_class=KernelClass.ATTENTION,
                time_ns=3 * MS + late_ns,
                count=16,
                floor_ns=0.5 * MS,
            ),
        ],
        is_launch_bound=False,
        farthest=KernelClass.ATTENTION,
    )
    return RankProfile(
        rank=number,
        device=ExecutedOn.GPU,
        file=f"rank{number}.json",
        trace_bytes=1_000,
        events=90,
        steps=steps(),
        phases=[decode],
        kernels=[
            KernelTime(
                name=GEMM_KERNEL,
                kernel_class=KernelClass.GEMM,
                count=192,
                time_ns=12 * MS,
                shortest_ns=40_000,
                longest_ns=90_000,
                decode_ns=12 * MS,
            )
        ],
        other_kernels=4,
        occurrences=[
            Occurrence(name=GEMM_KERNEL, step=1, begin_ns=11 * MS, duration_ns=90_000)
        ],
        gaps=[
            Gap(step=2, begin_ns=22 * MS, duration_ns=MS, doing="cudaStreamSynchronize")
        ],
        alignment_ns=7_000,
    )


def report() -> ProfileReport:
    return ProfileReport(
        ranks=[rank(0), rank(1, late_ns=MS)], problems=["rank2.json is cut short"]
    )
