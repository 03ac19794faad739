"""What ``inferwatch demo`` watches: a tiny model, and a load that makes it queue."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from embedded_engine.engine.config import LAYOUT_FLAGS, OURS, demo_config
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.errors import StorageError, UsageError
from inferwatch.live.engine_source import LiveEngine, StartedEngine, require_vllm
from inferwatch.live.load.load_desk import MakeLoad
from inferwatch.live.load.running_load import new_run_id
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import LoadPlan, SharedPrefixes
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.command import command
from inferwatch.record.lookup.recorded_load import RecordedLoad, measured_loads


def demo_plan(
    *,
    run_id: str,
    model: str,
    kv_tokens: int,
    url: str = "http://localhost",
    seed: int = 0,
) -> LoadPlan:
    """The demo's load: 0.6 of the engine's capacity, with bursts beyond it.

    ``kv_tokens`` is the KV cache size (blocks x tokens per block); each burst needs one
    and a half times that, so the engine queues and preempts now and then.
    """
    return LoadPlan(
        run_id=run_id,
        model=model,
        url=url,
        seed=seed,
        prompt_tokens=Range(64, 320),
        output_tokens=Range(32, 224),
        shared_prefixes=SharedPrefixes(groups=4, tokens=32),
        burst_every_s=20.0,
        burst_tokens=kv_tokens * 3 // 2,
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
        name = _fixed(flag.partition("=")[0].replace("_", "-"))
        if name is not None:
            advice = f"; `{command('serve', 'MODEL', '--', name)} …` takes it"
            raise UsageError(
                f"{name} is fixed in the demo: its load finds one small engine, with "
                f"its own model, here{advice if name in LAYOUT_FLAGS else ''}"
            )
    require_vllm()
    return StartedEngine(configure=partial(demo_config, probe, flags))


def _fixed(name: str) -> str | None:
    """Return the fixed flag that this is, or begins: argparse takes it for the whole.

    No flag of vLLM is the beginning of a fixed one.
    """
    begun = (each for each in FIXED_FLAGS if name[2:] and each.startswith(name))
    return name if name in FIXED_FLAGS else min(begun, default=None)


def earlier_demo(database: Path, seed: int) -> RecordedLoad | None:
    """The load of the newest demo on record whose rate was measured, if any.

    An engine with other flags gets the same load, so that both can be compared.
    """
    with suppress(StorageError):
        loads = measured_loads(database, "demo")
        return next((each for each in loads if each.plan.seed == seed), None)
    return None


def demo_load(seed: int, like: RecordedLoad | None = None) -> MakeLoad:
    """Return a function that plans the load for a demo's engine that has come up.

    Args:
        seed: Of the schedule.
        like: The load to send once more, instead of one measured at this engine.
    """

    def make(engine: LiveEngine, snapshot: Snapshot) -> LoadPlan:
        run_id, model = new_run_id(), engine.endpoint.model
        if like is not None:
            return msgspec.structs.replace(like.plan, run_id=run_id, model=model)
        kv_tokens = _kv_tokens(snapshot)
        return demo_plan(run_id=run_id, model=model, kv_tokens=kv_tokens, seed=seed)

    return make


def _kv_tokens(snapshot: Snapshot) -> int:
    blocks, size = snapshot.kv.total_blocks, snapshot.kv.block_tokens
    return blocks * size if blocks and size else MODEL_KV_TOKENS
