"""What ``inferwatch demo`` watches: a tiny model, and a load that makes it queue."""

from collections.abc import Sequence
from functools import partial

from embedded_engine.engine.config import LAYOUT_FLAGS, OURS, demo_config
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.errors import UsageError
from inferwatch.live.engine_source import LiveEngine, StartedEngine, require_vllm
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.load.running_load import new_run_id
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import LoadPlan, SharedPrefixes
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.command import command


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


FIXED_FLAGS = {
    *(*OURS, "--api-key", "--ssl-certfile", "--ssl-keyfile", "--headless"),
    *("--model", "--served-model-name", "--tokenizer", "--runner"),
    *(*LAYOUT_FLAGS, "--distributed-executor-backend", "--api-server-count"),
}
"""Flags of ``vllm serve`` without which there is no demo."""
MODEL_KV_TOKENS = 8192
"""The size of the demo engine's KV cache, in case its probe has not reported it."""


def demo_source(
    probe: ProbeSettings | None = None, flags: Sequence[str] = ()
) -> StartedEngine:
    """Return a tiny engine that ends with this process, with further flags of vLLM.

    Raises:
        SourceError: vLLM is not installed.
        UsageError: the demo cannot be with one of the flags.
    """
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if name in FIXED_FLAGS:
            raise UsageError(
                f"{name} is fixed in the demo: its load finds one small engine, with "
                f"its own model, here; `{command('serve', 'MODEL', '--', name)} …` "
                "takes it"
            )
    require_vllm()
    return StartedEngine(configure=partial(demo_config, probe, flags))


def demo_load(seed: int) -> MakeLoad:
    """Return a function that plans the demo's load for an engine that has come up."""

    def make(engine: LiveEngine, snapshot: Snapshot) -> LoadPlan:
        return demo_plan(
            run_id=new_run_id(),
            model=engine.endpoint.model,
            kv_tokens=_kv_tokens(snapshot),
            seed=seed,
        )

    return make


def _kv_tokens(snapshot: Snapshot) -> int:
    blocks, size = snapshot.kv.total_blocks, snapshot.kv.block_tokens
    return blocks * size if blocks and size else MODEL_KV_TOKENS
