"""Where a plan's prompts come from: made by length, or said by a data set."""

import gc
from pathlib import Path

from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.prompts.dataset import read_dataset
from inferwatch.loadgen.prompts.dataset_prompts import DatasetPrompts
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.prompts.text_lengths import TextLengths
from inferwatch.loadgen.prompts.words import Tokenizer, Words


async def prompts_of(plan: LoadPlan) -> tuple[Prompts, str]:
    """And how they are given, in a few words.

    Raises:
        DatasetError: its data set cannot be read.
    """
    if plan.dataset is not None:
        return await _dataset(plan, Path(plan.dataset))
    words = await Words.learn(plan) if plan.text_prompts else None
    return Prompts(plan, words), _form(words)


async def _dataset(plan: LoadPlan, path: Path) -> tuple[Prompts, str]:
    talks = read_dataset(path, turns=plan.turns != fixed(1))
    gc.freeze()  # a collection that looks at every prompt would be a late stamp
    lengths = TextLengths()
    prompts = DatasetPrompts(plan, talks, lengths)
    async with Tokenizer(plan, as_text=True) as tokenizer:
        await lengths.ask(tokenizer, prompts.texts())
    told = "counted by /tokenize" if lengths.told else "lengths estimated"
    return prompts, f"{len(talks):,} prompts of {path.name}, {told}"


def _form(words: Words | None) -> str:
    if words is None:
        return "prompts as token ids"
    if words.exact:
        return "prompts counted by /tokenize"
    return "length of prompts estimated"
