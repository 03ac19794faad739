"""The tiny model at its word, without vLLM: a program that prints what it says."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(directory: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    chat = [{"role": "user", "content": "Grüße, 世界! \N{SNOWMAN}"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    said = model.generate(ids, do_sample=True, top_k=0, max_new_tokens=200)[0]
    told = {
        "prompt": tokenizer.decode(ids[0]),
        "pieces": [tokenizer.decode([token]) for token in said[ids.shape[1] :]],
    }
    print(json.dumps(told), flush=True)  # noqa: T201 - that is its purpose


if __name__ == "__main__":
    main(sys.argv[1])
