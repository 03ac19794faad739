"""An engine in this process: adapters, a KV connector, held prompts, a compilation.

A program, not a test: serves some requests, says so, and waits to be killed.
"""

import json
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from embedded_engine.probe.blocks import block_maps
from embedded_engine.worker import answer_for_cpu_wheel

ADAPTERS = ("poet", "lawyer")
PROMPT = list(range(300, 400))
EVERY = 4
"""Steps from one that may compute prompts to the next."""
LATE = 30
COMPILES_S = 0.3


def main(model: Path, kind: str, directory: Path) -> None:
    block_maps.EVERY_NS = 20_000_000
    answer_for_cpu_wheel()
    kinds = {
        "adapters": with_adapters,
        "held": with_held_prefills,
        "compiling": with_compilation,
        "thinking": with_thinking,
    }
    _engine = kinds.get(kind, with_connector)(
        model, directory
    )  # it lives for as long as we do
    print(json.dumps({"done": kind}), flush=True)  # noqa: T201 - that is its purpose
    sys.stdin.readline()


def with_adapters(model: Path, directory: Path) -> Any:
    """One slot for two of them, so that requests wait for it."""
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - patched for above

    one_slot = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8}
    engine = boot(model, scheduling_policy="priority", **one_slot)
    add(engine, "plain", tokens=120)
    for number, name in enumerate(ADAPTERS, start=1):
        path = str(adapter(directory / name, model))
        for priority in (0, 3):
            asked = LoRARequest(name, number, path)
            add(
                engine,
                f"{name} {priority}",
                tokens=40,
                lora_request=asked,
                priority=priority,
            )
    finish(engine)
    return engine


def with_held_prefills(model: Path, _: Path) -> Any:
    """Prompts are computed in every fourth step alone, while another decodes.

    vLLM 0.32 asks its scheduler for this among data-parallel ranks only, newer ones
    always: so it is asked here in place of the engine.
    """
    engine = boot(model, prefill_schedule_interval=EVERY)
    core = engine.engine_core.engine_core
    steps = count()
    core._should_throttle_prefills = lambda: next(steps) % EVERY != 0
    add(engine, "decodes", tokens=100)
    for _step in range(6):
        engine.step()
    for number in range(2):
        add(engine, f"held {number}", tokens=10)
    add(engine, "held twice", tokens=10, prompt=list(range(1000, 1400)))
    finish(engine)
    return engine


def with_thinking(model: Path, directory: Path) -> Any:
    """The thinking of one request is ended by its budget, that of another never."""
    from vllm import SamplingParams  # noqa: PLC0415 - patched for above
    from vllm.config import ReasoningConfig  # noqa: PLC0415

    config = ReasoningConfig(reasoning_start_str="a", reasoning_end_str="b")
    engine = boot(model, reasoning_config=config)
    tokens = engine.vllm_config.reasoning_config
    (start,), (end,) = tokens.reasoning_start_token_ids, tokens.reasoning_end_token_ids
    outputs = {}
    for name, budget in (("thinks", 12), ("ends not", None)):
        sampled = SamplingParams(
            max_tokens=30,
            ignore_eos=True,
            logit_bias={end: -100.0},
            thinking_token_budget=budget,
        )
        engine.add_request(name, {"prompt_token_ids": [*PROMPT, start]}, sampled)
    while engine.has_unfinished_requests():
        for each in engine.step():
            outputs[each.request_id] = list(each.outputs[0].token_ids)
    told = {name: [each == end for each in ids] for name, ids in outputs.items()}
    (directory / "outputs").write_text(json.dumps(told), "utf-8")
    return engine


def with_compilation(model: Path, _: Path) -> Any:
    """PyTorch compiles a function in the model's thirtieth step."""
    import torch  # noqa: PLC0415 - heavy

    engine = boot(model)
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    forward, passes = runner.model.forward, count()

    def compiles(*args: Any, **kwargs: Any) -> Any:
        if next(passes) == LATE:
            torch.compile(lambda each: each.sin() + each.cos(), backend=slowly)(
                torch.ones(3)
            )
        return forward(*args, **kwargs)

    runner.model.forward = compiles
    add(engine, "waits", tokens=60)
    finish(engine)
    return engine


def slowly(graph: Any, _: Any) -> Any:
    """A back end of PyTorch's compiler that needs as long as a real one may."""
    time.sleep(COMPILES_S)
    return graph.forward


def with_connector(model: Path, directory: Path) -> Any:
    """It keeps no prefixes itself, but stores them in files.

    For the second request it needs some time to find out what it has.
    """
    from vllm.config import KVTransferConfig  # noqa: PLC0415 - patched for above

    connector = KVTransferConfig(
        kv_connector="ExampleConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"shared_storage_path": str(directory / "kv")},
    )
    engine = boot(model, kv_transfer_config=connector, enable_prefix_caching=False)
    add(engine, "first", tokens=5)
    finish(engine)
    there = engine.engine_core.engine_core.scheduler.connector
    look, asked = there.get_num_new_matched_tokens, count()

    def look_later(*args: Any) -> Any:
        return (None, False) if next(asked) < LATE else look(*args)

    there.get_num_new_matched_tokens = look_later
    add(engine, "second", tokens=100)
    finish(engine)
    return engine


def boot(model: Path, **more: Any) -> Any:
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - patched for above

    arguments = EngineArgs(
        model=str(model),
        enforce_eager=True,
        distributed_executor_backend="uni",
        max_num_seqs=16,
        max_num_batched_tokens=256,
        max_model_len=512,
        block_size=32,
        num_gpu_blocks_override=64,
        kv_cache_memory_bytes=64 << 20,
        **more,
    )
    return LLMEngine.from_engine_args(arguments)


def add(
    engine: Any, name: str, *, tokens: int, prompt: list[int] = PROMPT, **more: Any
) -> None:
    from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

    sampled = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), sampled, **more)


def finish(engine: Any) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def adapter(directory: Path, model: Path) -> Path:
    """A LoRA adapter that changes nothing."""
    import torch  # noqa: PLC0415 - heavy
    from safetensors.torch import save_file  # noqa: PLC0415

    config = json.loads((model / "config.json").read_text("utf-8"))
    size = config["hidden_size"]
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    heads = config["num_attention_heads"]
    width = heads * config.get("head_dim", size // heads)
    directory.mkdir()
    save_file(
        {
            f"{layer}.lora_A.weight": torch.zeros(8, size),
            f"{layer}.lora_B.weight": torch.zeros(width, 8),
        },
        directory / "adapter_model.safetensors",
    )
    asked = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "bias": "none"}
    asked |= {"target_modules": ["q_proj"], "base_model_name_or_path": str(model)}
    (directory / "adapter_config.json").write_text(json.dumps(asked), "utf-8")
    return directory


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
