"""What ``inferwatch demo`` watches: a tiny model, and a load that makes it queue."""

import secrets

from collectors.clock import SessionClock
from collectors.load_stream import LoadStream
from embedded_engine.config import demo_config
from embedded_engine.launch import Engine
from embedded_engine.logs import new_log_path
from inferwatch.loadgen.plan import demo_plan
from inferwatch.loading.load import Load
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.watching.sources import StartedEngine
from inferwatch.watching.watch import MakeLoad

MODEL_KV_TOKENS = 8192
"""What the demo's engine holds, should its probe not have told."""


def demo_source() -> StartedEngine:
    """A tiny engine that ends with us."""
    return StartedEngine(configure=demo_config)


def demo_load(seed: int) -> MakeLoad:
    """Plans the demo's load for an engine that has come up."""

    def make(clock: SessionClock, engine: Engine, known: Snapshot) -> Load:
        run_id = f"load-{secrets.token_hex(3)}"
        plan = demo_plan(
            run_id=run_id,
            model=engine.endpoint.model,
            url=engine.endpoint.url or "http://localhost",
            uds=engine.endpoint.uds,
            kv_tokens=_kv_tokens(known),
            seed=seed,
        )
        return Load(plan, LoadStream(clock, run_id), log_path=new_log_path(run_id))

    return make


def _kv_tokens(known: Snapshot) -> int:
    blocks, size = known.kv.total_blocks, known.kv.block_tokens
    return blocks * size if blocks and size else MODEL_KV_TOKENS
