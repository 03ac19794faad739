"""Lines on how steps are computed: CUDA graphs and tensor parallelism."""

from inferwatch.formatting import duration_text, format_share
from inferwatch.limits.communication import communication
from inferwatch.limits.devices import device_named
from inferwatch.limits.plan import GpuSetup
from inferwatch.metrics.floor.view import Bound
from inferwatch.studies.review.line import (
    NO_STEPS,
    Advised,
    Judgement,
    ReviewLine,
    by_knob,
    change,
    good,
    unknown,
)
from inferwatch.studies.review.setup import Setup


class CudaGraphs(ReviewLine):
    """Kernels launched one by one, against the time that is beyond the floors."""

    NAME, SETTING = "CUDA graphs", "cudagraph_mode"

    def present(self, setup: Setup) -> str | None:
        mode = super().present(setup)
        if setup.setting("enforce_eager") is True:
            return "off (enforce_eager)"
        return (
            mode
            if mode is not None
            else ("on" if setup.setting("enforce_eager") is False else None)
        )

    def judge(self, setup: Setup) -> Judgement:
        if setup.on_cpu:
            return good("the engine computes on a CPU, which has none")
        present = self.present(setup)
        if present is None or not setup.tells_steps:
            return unknown(NO_STEPS if present else "whether they are used is not told")
        off = setup.setting("enforce_eager") is True or present == "NONE"
        limits, held = setup.now.limits, setup.held("host_bound")
        split = limits.split if limits is not None else None
        decode = limits.decode if limits is not None else None
        beyond = (
            None
            if split is None or split.inefficiency is None
            else (split.inefficiency + (split.host_gap or 0.0))
        )
        seen = "how far steps are from their floors is not known"
        if beyond is not None:
            share = format_share(beyond).strip()
            seen = f"{share} of the time with work is beyond the floors of the steps"
        if not off:
            return good(seen)
        launches = decode is not None and decode.bound is Bound.OVERHEAD
        if held is None and not launches:
            return unknown(seen) if beyond is None else good(seen)
        gain = (
            None
            if beyond is None
            else (
                f"at most the {format_share(beyond).strip()} that is beyond the floors"
            )
        )
        eager = setup.setting("enforce_eager") is True
        return change(
            held.sentence if held is not None else seen,
            Advised(
                text="leave it out: decode is launched as CUDA graphs then"
                if eager
                else "launch decode as CUDA graphs",
                flag="--enforce-eager" if eager else "--compilation-config",
                gain=gain,
                risk="a longer start, and some GPU memory",
            ),
        )


class TensorParallel(ReviewLine):
    """How many GPUs share each layer, against what they have to tell each other."""

    NAME, SETTING = "tensor parallelism", "tensor_parallel_size"

    def judge(self, setup: Setup) -> Judgement:
        ways = setup.setting(self.SETTING)
        if not isinstance(ways, int):
            return unknown("not told")
        if ways < 2:
            return good("a GPU has each layer whole, and nothing is sent")
        limits, batch = setup.now.limits, setup.now.steps.batch_mean
        device = device_named((limits.peak.device if limits else None) or "")
        machine = GpuSetup(device=device, tensor_parallel=ways) if device else None
        link = machine.link if machine is not None else None
        shape, decode = (limits.shape, limits.decode) if limits else (None, None)
        if not (shape and machine and link and batch and decode):
            return unknown("the model's shape or the GPUs' link is not known")
        sent_s = communication(shape, machine.ways, batch).time_s(link)
        seen = (
            f"at batches of {batch:.1f} its GPUs send each other for "
            f"~{duration_text(sent_s)} a step over {link.name}; steps take "
            f"{duration_text(decode.step_s)}"
        )
        held = setup.held("tensor_parallel_too_high")
        if held is None or (knob := held.knob(self.SETTING)) is None:
            return good(seen)
        return change(
            f"{held.sentence}; {seen}",
            by_knob(
                knob,
                "less room for KV blocks in each replica; longer prefills",
                gain="~as many tokens/s or more, by floors and that estimate",
            ),
        )
