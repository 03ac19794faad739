"""What is declared of a family of servers: what it offers and how it calls it."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Names = tuple[str, ...]
"""Spellings of one metric, the newest first; the first that a server has counts."""
Answers = Mapping[str, Any]
"""What paths of a server answered, as JSON; those it does not have are missing."""
Labels = Mapping[str, str]
LONGEST = 256
"""No name and no setting is longer."""
Flag = str | int | float | bool | None
Live = tuple[str, Callable[[Any], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server tells of itself, as far as its family tells it."""

    version: str | None = None
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    settings: dict[str, str] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    flags: dict[str, Flag] = field(default_factory=dict)
    """Settings by the names of the flags that set them, where the family is vLLM."""
    root: str | None = None
    """Where it says that its model is: a directory, or a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family: which of its metrics fill which field of an EngineSample.

    Metrics go without ``_total``, ``_bucket``, ``_sum`` and ``_count``; "a + b" is the
    sum of two. Of series that differ only in labels not named here, gauges give the
    highest, since each rank of a group repeats the same; all else is added up.
    """

    name: str
    title: str
    prefixes: Names = ()
    """What the names of its metrics begin with, and nobody else's."""
    rank_label: str = "engine"
    model_label: str = "model_name"
    kv_usage: Names = ()
    """0-1."""
    other_pools: Names = ()
    """Use of pools whose fullest ``kv_usage`` tells: while any of them is in use, how
    full the KV cache is cannot be read off that."""
    gauges: Mapping[str, Names] = field(default_factory=dict)
    counters: Mapping[str, Names] = field(default_factory=dict)
    finished: Mapping[str, str] = field(default_factory=dict)
    """What counts requests that ended: how they did, or ``{label}`` that says so."""
    histograms: Mapping[str, Names] = field(default_factory=dict)
    others: Mapping[str, str | None] = field(default_factory=dict)
    """What only it has, kept by its own name without the prefix; for each the label
    that parts its series, if one does."""
    sums: Names = ()
    """Histograms that only it has: of each the sum and the count are kept beside
    ``others``, which is all that a mean between two scrapes takes."""
    info: Names = ()
    """Tells by its labels how the engine is configured."""
    started_header: str | None = None
    """Comes with metrics and changes with each start."""
    asks: tuple[Names, ...] = (("/v1/models",),)
    """Paths that tell what the server is, the newest first of those that tell the same
    thing: what the first that is there says goes by the newest."""
    live: Live | None = None
    """A path that tells something of now where there are no metrics, and its fields."""
    describe: Callable[[Answers, Labels | None], Facts]
    """Reads what they answered, and the labels of ``info``: None without metrics."""

    def short(self, metric: str) -> str:
        """A metric's name without the prefix."""
        for prefix in self.prefixes:
            metric = metric.removeprefix(prefix)
        return metric


def models_of(answers: Answers) -> list[Mapping[str, Any]]:
    """The models an OpenAI-compatible server lists, whatever it really answered."""
    answer = answers.get("/v1/models")
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list):
        return []
    return [each for each in data if isinstance(each, Mapping)][:100]


def model_names(answers: Answers) -> list[str]:
    """Their names."""
    return [text for each in models_of(answers) if (text := text_of(each.get("id")))]


def text_of(value: object) -> str | None:
    """A text, if that is what it is."""
    return value[:LONGEST] if isinstance(value, str) and value else None


def count_of(value: object) -> int | None:
    """A count, also where it is written as text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:18])
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    return None


def setting_of(value: object) -> str | None:
    """How a setting is written, if it is a plain one."""
    if value is None or value == "" or not isinstance(value, str | int | float):
        return None
    return str(value)[:LONGEST]


def flag_of(text: str) -> Flag:
    """A value as Python writes it: a number, a truth, nothing, else the text."""
    named: dict[str, Flag] = {"None": None, "True": True, "False": False}
    if text in named:
        return named[text]
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text[:LONGEST])
            return number if math.isfinite(number) and abs(number) < 2**53 else None
    return text[:LONGEST]
