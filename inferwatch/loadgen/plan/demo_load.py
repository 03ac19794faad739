"""The load of the demo."""

from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import LoadPlan, SharedPrefixes


def demo_plan(  # noqa: PLR0913 - the facts of one engine
    *,
    run_id: str,
    model: str,
    kv_tokens: int,
    url: str = "http://localhost",
    uds: str | None = None,
    seed: int = 0,
    duration_s: float | None = None,
) -> LoadPlan:
    """The demo's load: 0.6 of the engine's capacity, with bursts beyond it.

    ``kv_tokens`` is the KV cache size (blocks x tokens per block); each burst needs one
    and a half times that, so the engine queues and preempts now and then.
    """
    return LoadPlan(
        run_id=run_id,
        model=model,
        url=url,
        uds=uds,
        seed=seed,
        prompt_tokens=Range(64, 320),
        output_tokens=Range(32, 224),
        shared_prefixes=SharedPrefixes(groups=4, tokens=32),
        burst_every_s=20.0,
        burst_tokens=kv_tokens * 3 // 2,
        duration_s=duration_s,
    )
