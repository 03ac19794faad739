"""Makes a small random Llama with a byte-level BPE tokenizer, on the spot.

Runs as a child process, ``python -m embedded_engine.tiny_model DIR``: nothing is
downloaded, and numpy suffices for the weights, so it takes a second and no torch.

The words it says are random but readable. Dimension 0 of the residual stream is a
constant (every embedding carries it, the layers are too small to move it), so column 0
of the output layer acts as a bias: it silences the end-of-sequence token and those
that are no printable text, and an answer is as long as was asked for.
"""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from pydoc_data import topics

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VERSION = "2"
"""Names what is made; raise it when anything below changes the files."""

VOCABULARY = 4096
HIDDEN = 256
LAYERS = 8
"""Enough that a step lasts some 6 ms: a client on the same two cores can follow."""
HEADS = 4
KV_HEADS = 2
HEAD = HIDDEN // HEADS
FEED_FORWARD = 512
CONTEXT_TOKENS = 4096
SPECIAL = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ALWAYS_ON = 4.0
"""Dimension 0 of every embedding."""
SILENT = -100.0
"""The output bias of a token that is never to be said."""

Weights = dict[str, NDArray[np.float32]]


def make(directory: Path) -> Path:
    """The model's directory inside ``directory``, made only when not there yet.

    It appears by one rename, so a killed make leaves nothing that looks finished.
    """
    finished = directory / f"tiny-llama-{VERSION}"
    if finished.exists():
        return finished
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="making-", dir=directory))
    try:
        write_model(unfinished)
        unfinished.rename(finished)
    except OSError:
        if not finished.exists():  # else somebody else was faster, and that is fine
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return finished


def write_model(directory: Path) -> None:
    """Everything a model directory holds."""
    tokenizer = train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in settings(tokenizer).items():
        (directory / name).write_text(json.dumps(content, indent=2), "utf-8")
    save_file(
        random_weights(spoken(tokenizer)),
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over the one long English text that every Python carries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    return tokenizer


def spoken(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which tokens may be said: words that bring their space along."""
    texts = (tokenizer.decode([index]) for index in range(VOCABULARY))
    return np.array([re.fullmatch(" [A-Za-z]+", text) is not None for text in texts])


def settings(tokenizer: Tokenizer) -> dict[str, object]:
    """The small JSON files, by name."""
    begin, end = (tokenizer.token_to_id(token) for token in SPECIAL[:2])
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": FEED_FORWARD,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD,
            "max_position_embeddings": CONTEXT_TOKENS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": begin,
            "eos_token_id": end,
            "torch_dtype": "bfloat16",
        },
        "generation_config.json": {
            "bos_token_id": begin,
            "eos_token_id": end,
            "do_sample": True,
            "temperature": 1.0,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[1],
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def random_weights(spoken_tokens: NDArray[np.bool_]) -> Weights:
    """The same on every machine: the seed is fixed."""
    draw = np.random.default_rng(seed=20)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return draw.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    embedding = matrix(VOCABULARY, HIDDEN)
    embedding[:, 0] = ALWAYS_ON
    output = matrix(VOCABULARY, HIDDEN)
    output[:, 0] = np.where(spoken_tokens, 0.0, SILENT)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": output,
    }
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
        "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, shape in shapes.items():
            weights[f"{at}.{name}.weight"] = matrix(*shape)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    return weights


if __name__ == "__main__":
    sys.stdout.write(f"{make(Path(sys.argv[1]))}\n")
