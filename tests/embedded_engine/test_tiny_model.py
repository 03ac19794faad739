"""The tiny model: made once, whole or not at all, and fit for vLLM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine  # its libraries come with vLLM


def make(directory: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-m", "embedded_engine.tiny_model", str(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(made.stdout.strip())


def test_it_is_made_once(tmp_path: Path) -> None:
    first = make(tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}

    assert make(tmp_path) == first

    again = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    assert again == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_what_a_killed_make_left_does_not_count(tmp_path: Path) -> None:
    half = tmp_path / "making-killed"
    half.mkdir()
    (half / "config.json").write_text("{}")

    made = make(tmp_path)

    assert (made / "model.safetensors").stat().st_size > 1_000_000


def test_it_is_the_same_everywhere(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two")

    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()


SPEAK = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "Grüße, 世界! \\N{SNOWMAN}"}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
torch.manual_seed(0)
torch.set_num_threads(1)
said = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=200)[0]
json.dump({
    "prompt": tokenizer.decode(ids[0]),
    "pieces": [tokenizer.decode([token]) for token in said[ids.shape[1]:]],
}, sys.stdout)
"""


def test_it_speaks_words_for_as_long_as_it_is_asked(tmp_path: Path) -> None:
    spoken = subprocess.run(
        [sys.executable, "-c", SPEAK, str(make(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer = json.loads(spoken.stdout)

    assert answer["prompt"] == (
        "<|begin|><|user|>Grüße, 世界! \N{SNOWMAN}<|end|><|assistant|>"
    )
    assert len(answer["pieces"]) == 200  # no early end of sequence
    assert all(piece.strip().isalpha() for piece in answer["pieces"])
    assert len(set(answer["pieces"])) > 100
