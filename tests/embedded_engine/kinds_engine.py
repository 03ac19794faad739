"""An engine in this process: adapters, images, a KV connector, held prompts, and more.

A program, not a test: serves some requests, says so, and waits to be killed.
"""

import asyncio
import json
import shutil
import sys
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

from PIL import Image

from collectors.contract.clock import monotonic_ns
from embedded_engine.engine.config import demo_dtype
from embedded_engine.probe import probe
from embedded_engine.probe.blocks import block_maps
from embedded_engine.worker import answer_for_cpu_wheel

ADAPTERS = ("poet", "lawyer")
PROMPT = list(range(300, 400))
EVERY = 4
"""Steps from one that may compute prompts to the next."""
LATE = 30
COMPILES_S = 0.3
FETCHED_S = 0.2
SMALL: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 512,
    "dtype": demo_dtype(),
}


def main(model: Path, kind: str, directory: Path) -> None:
    block_maps.EVERY_NS = 20_000_000
    answer_for_cpu_wheel()
    kinds = {
        "adapters": with_adapters,
        "held": with_held_prefills,
        "compiling": with_compilation,
        "thinking": with_thinking,
        "images": with_images,
        "rendered": rendered,
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


def with_images(model: Path, directory: Path) -> Any:
    """An Idefics3 of random weights: text, an image of a slow server, that again."""
    engine = boot(seeing(model, directory / "seeing"), load_format="dummy")
    url, encoded = an_image()
    asyncio.run(show(engine, "text"))
    asyncio.run(show(engine, "fetched", url))
    asyncio.run(show(engine, "again", encoded))
    finish(engine)
    return engine


def rendered(model: Path, directory: Path) -> Any:
    """No engine, but what an API server does with images before it sends a request."""
    from vllm import EngineArgs  # noqa: PLC0415 - patched for above
    from vllm.renderers.registry import renderer_from_config  # noqa: PLC0415

    config = EngineArgs(model=str(seeing(model, directory / "seeing")), **SMALL)
    renderer = renderer_from_config(config.create_engine_config())
    tap = probe.start()._front.media

    async def times(*urls: str) -> dict[str, Any]:
        arrived_ns = monotonic_ns()
        prompt = await prompt_of(renderer, *urls)
        tokens = prompt["prompt_token_ids"]
        found = tap.of(tokens, len(urls), arrived_ns)._asdict()
        return found | {"arrived": arrived_ns, "rendered": monotonic_ns()}

    url, encoded = an_image()
    told = {"fetched": asyncio.run(times(url)), "again": asyncio.run(times(encoded))}
    print(json.dumps(told), flush=True)  # noqa: T201 - that is its purpose


def an_image() -> tuple[str, str]:
    """Its addresses at a slow server, and within itself."""
    file = BytesIO()
    Image.new("RGB", (40, 40), "red").save(file, "PNG")
    image = file.getvalue()

    class SlowServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(FETCHED_S)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(image)

    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    encoded = f"data:image/png;base64,{b64encode(image).decode()}"
    return f"http://127.0.0.1:{server.server_port}/", encoded


async def show(engine: Any, name: str, *urls: str) -> None:
    """Send a request as an API server does that was asked to chat."""
    from vllm import SamplingParams  # noqa: PLC0415 - patched for above

    prompt = await prompt_of(engine.renderer, *urls)
    engine.add_request(name, prompt, SamplingParams(max_tokens=3, ignore_eos=True))


async def prompt_of(renderer: Any, *urls: str) -> Any:
    from vllm.renderers.params import ChatParams  # noqa: PLC0415 - patched for above

    content = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    message = {"role": "user", "content": [*content, {"type": "text", "text": "hi"}]}
    _, (prompt,) = await renderer.render_chat_async([[message]], ChatParams())
    return prompt


def seeing(model: Path, directory: Path) -> Path:
    """The configuration of a tiny Idefics3 around a text model, without weights."""
    from vllm import ModelRegistry  # noqa: PLC0415 - patched for above
    from vllm.model_executor.models import idefics3  # noqa: PLC0415

    # vLLM would start an interpreter to look at a class that it has not seen yet.
    seen = idefics3.Idefics3ForConditionalGeneration
    ModelRegistry.register_model(seen.__name__, seen)
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    text = json.loads((model / "config.json").read_text("utf-8"))
    tokenizer = json.loads((model / "tokenizer.json").read_text("utf-8"))
    marks = [
        "<image>",
        "<fake_token_around_image>",
        "<global-img>",
        "<end_of_utterance>",
    ]
    known = {**tokenizer["added_tokens"][0]}
    first = text["vocab_size"]
    tokenizer["added_tokens"] += [
        known | {"id": first + number, "content": mark}
        for number, mark in enumerate(marks)
    ]
    text["vocab_size"] += 64
    vision = {"model_type": "idefics3_vision", "hidden_size": 32, "image_size": 28}
    vision |= {"intermediate_size": 64, "num_hidden_layers": 2, "patch_size": 14}
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": text,
        "vision_config": vision | {"num_attention_heads": 2},
        "image_token_id": first,
        "scale_factor": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    named = {"processor_class": "Idefics3Processor"}
    size = {"longest_edge": 28}
    images: dict[str, Any] = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": size,
    }
    images |= {"max_image_size": size, "do_image_splitting": False}
    for name, content in (
        ("config.json", config),
        ("preprocessor_config.json", images | named),
        ("processor_config.json", named | {"image_seq_len": 1}),
        ("tokenizer.json", tokenizer),
    ):
        (directory / name).write_text(json.dumps(content), "utf-8")
    return directory


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
        distributed_executor_backend="uni",
        max_num_seqs=16,
        max_num_batched_tokens=256,
        block_size=32,
        num_gpu_blocks_override=64,
        kv_cache_memory_bytes=64 << 20,
        **SMALL,
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
