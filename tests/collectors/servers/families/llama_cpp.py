"""llama.cpp's own HTTP server on a small random model, as a process of its own.

``python llama_cpp.py DIRECTORY`` writes the model there, serves it on a free port of
loopback and prints that port.
"""

import json
import sys
import time
from pathlib import Path

import gguf
import xllamacpp

from embedded_engine import tiny_model as tiny

SLOTS = 4
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Of a layer, as Hugging Face and as llama.cpp call them."""
OTHERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_model(path: Path) -> None:
    """The demo's small model, in llama.cpp's file format."""
    tokenizer = tiny.train_tokenizer()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    texts = [str(tokenizer.id_to_token(index)) for index in range(tiny.VOCABULARY)]
    model = gguf.GGUFWriter(path, "llama")
    model.add_context_length(tiny.CONTEXT_TOKENS)
    model.add_embedding_length(tiny.HIDDEN)
    model.add_block_count(tiny.LAYERS)
    model.add_feed_forward_length(tiny.FEED_FORWARD)
    model.add_head_count(tiny.HEADS)
    model.add_head_count_kv(tiny.KV_HEADS)
    model.add_rope_dimension_count(tiny.HEAD)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_tokenizer_model("gpt2")
    model.add_tokenizer_pre("gpt-2")
    model.add_token_list(texts)
    model.add_token_types(
        [
            gguf.TokenType.CONTROL if text in tiny.SPECIAL else gguf.TokenType.NORMAL
            for text in texts
        ]
    )
    model.add_token_merges([" ".join(pair) for pair in merges])
    model.add_bos_token_id(0)
    model.add_eos_token_id(1)
    for name, weights in tiny.random_weights(tiny.spoken(tokenizer)).items():
        model.add_tensor(OTHERS.get(name) or _of_layer(name), weights)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def _of_layer(name: str) -> str:
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part.removesuffix('.weight')]}.weight"


def serve(directory: Path) -> None:
    """Serve until killed."""
    path = directory / "tiny.gguf"
    write_model(path)
    settings = xllamacpp.CommonParams()
    settings.model.path = str(path)
    settings.port = 0
    settings.n_ctx = tiny.CONTEXT_TOKENS
    settings.n_parallel = SLOTS
    settings.cpuparams.n_threads = 1
    settings.endpoint_metrics = settings.endpoint_slots = True
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)  # noqa: T201 - for who started us
    while True:
        time.sleep(60)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
