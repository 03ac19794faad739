"""Creates a small random Llama model with a byte-level BPE tokenizer.

Runs as a child process, ``python -m embedded_engine.tiny_model DIR``: nothing is
downloaded, and numpy is enough for the weights, so it takes a second and no torch.

Its output is random but readable. Dimension 0 of the residual stream is constant (every
embedding sets it, the layers are too small to change it), so column 0 of the output
layer acts as a bias: it suppresses the end-of-sequence token and tokens that are not
printable, so a response is as long as requested.
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
"""Version of the files; raise it when anything below changes them."""

VOCABULARY = 4096
HIDDEN = 256
LAYERS = 8
"""Enough for a step of about 6 ms, so that a client on the same two cores keeps up."""
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
"""Output bias of suppressed tokens."""

Weights = dict[str, NDArray[np.float32]]


def make(directory: Path) -> Path:
    """The model's directory inside ``directory``, created if missing.

    It appears by one rename, so an interrupted run leaves nothing that looks complete.
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
        if not finished.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return finished


def write_model(directory: Path) -> None:
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
    """Train byte-level BPE on a long English text that comes with Python."""
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
    """Mask of the tokens the model may produce: words with a leading space."""
    texts = (tokenizer.decode([index]) for index in range(VOCABULARY))
    return np.array([re.fullmatch(" [A-Za-z]+", text) is not None for text in texts])


def settings(tokenizer: Tokenizer) -> dict[str, object]:
    """Contents of the model's JSON files, by file name."""
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
    """Weights from a fixed seed, equal on every machine."""
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
