"""What is declared about a server family: its metrics, endpoints and settings."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from collectors.contract.model_routes import asks_model

Names = tuple[str, ...]
"""Names of one metric across versions, newest first; the first present is used."""
Answers = Mapping[str, Any]
"""JSON responses by path; paths the server lacks are missing."""
Labels = Mapping[str, str]
LONGEST = 256
"""Longest name or setting that is kept."""
Flag = str | int | float | bool | None
Live = tuple[str, Callable[[Any], Mapping[str, Any]]]


MOST_RANKS = 256
ADAPTERS, ADAPTERS_WAITING = "adapters", "adapters_waiting"
"""Names in ``EngineSample.others`` of how many LoRA adapters running requests use, and
how many waiting requests alone."""


class Publisher(msgspec.Struct, frozen=True):
    """Endpoints at which one data-parallel rank publishes."""

    endpoint: str
    publisher: str = "zmq"
    replay_endpoint: str | None = None
    unheard: str = ""
    """Why nobody can listen, as text for users."""


Publishers = dict[int, Publisher]
"""By rank."""
SELDOM_S = 60.0
"""Pause between queries where a server lists none, or among all else of itself."""


class FindPublishers(NamedTuple):
    """How a family of servers lists its publishers."""

    path: str
    read: Callable[[Any], Publishers]
    """Reads the JSON response; ``msgspec.ValidationError`` where it lists none."""
    every_s: float = SELDOM_S
    """Pause between queries: a restarted server may have new endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server reports about itself, as far as its family offers it."""

    version: str | None = None
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    num_kv_blocks: int | None = None
    kv_block_tokens: int | None = None
    settings: dict[str, str] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)
    flags: dict[str, Flag] = field(default_factory=dict)
    """Values of vLLM's command-line flags; empty for other families."""
    root: str | None = None
    """Directory or Hugging Face name of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFamily:
    """A server family, and which of its metrics fill which field of EngineSample.

    Metric names omit ``_total``, ``_bucket``, ``_sum`` and ``_count``; "a + b" is the
    sum of two. Where several series differ only in labels not named here, gauges take
    the maximum, because every rank of a group repeats the same value; everything else
    is summed.
    """

    name: str
    title: str
    prefixes: Names = ()
    """Prefixes of its metric names, unique among families."""
    rank_label: str = "engine"
    model_label: str = "model_name"
    kv_usage: Names = ()
    """Metric names of KV cache usage, 0 to 1."""
    other_pools: Names = ()
    """Usage of further pools that share ``kv_usage``: while one of them is in use, the
    KV cache's own usage is unknown."""
    gauges: Mapping[str, Names] = field(default_factory=dict)
    counters: Mapping[str, Names] = field(default_factory=dict)
    finished: Mapping[str, str] = field(default_factory=dict)
    """Counters of finished requests by finish reason, or by ``{label}`` that holds
    it."""
    histograms: Mapping[str, Names] = field(default_factory=dict)
    others: Mapping[str, str | None] = field(default_factory=dict)
    """Metrics of this family only, kept without the prefix; each with the label that
    distinguishes its series, or None."""
    speculation: Mapping[str, str] = field(default_factory=dict)
    """Those of ``others`` that tell of speculative decoding, by what they are: drafts,
    drafted_tokens, accepted_tokens and accepted_by_position, counters; acceptance and
    acceptance_length, gauges."""
    refused: Mapping[str, Callable[[Labels], str | None]] = field(default_factory=dict)
    """Counters of refused requests, by reason or by ``route status``, which is made of
    a series' labels; None for a series that counts no refusals. Prefixes need not be
    the family's."""
    adapters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Gauges of the time at which their labels applied, with the labels that list the
    LoRA adapters of running and of waiting requests. Their numbers are kept in
    ``others``."""
    sums: Mapping[str, str | None] = field(default_factory=dict)
    """Histograms and summaries of this family only, each with the label that
    distinguishes its series, or None. Their sum and count are kept in ``others``,
    enough for a mean between two scrapes."""
    caches: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Caches other than the prefix cache, by a name for users: their counters of
    queries and of hits, both of ``others``."""
    means: Mapping[str, str] = field(default_factory=dict)
    """Means by a name for users: the metric of ``sums`` that counts the values."""
    times: Mapping[str, str] = field(default_factory=dict)
    """The same of times in seconds; of a metric with a label, each value of the label
    is a name, whatever stands here."""
    prefill: tuple[str, str] = ("", "")
    """The metric of ``times``, and the value of its label, that is the time in which a
    request's prompt was computed; of families without a histogram of it."""
    scheduler: str = ""
    """Counter of ``others`` of the seconds its scheduler spent, by stage."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Usage of the pools of a hybrid model's cache, by a name for users: gauges of
    ``others``, 0 to 1."""
    info: Names = ()
    """Info metrics whose labels hold the engine's configuration."""
    started_header: str | None = None
    """Response header of ``/metrics`` that changes with each start of the server."""
    asks: tuple[Names, ...] = (("/v1/models",),)
    """Paths to ask for the server's identity. Alternatives are ordered newest first,
    and a response is filed under the newest."""
    live: Live | None = None
    """Path that reports current state when metrics are off, and its parser."""
    kv_events: FindPublishers | None = None
    """Where it says at which endpoints it publishes KV cache events."""
    steps: FindPublishers | None = None
    """The same of its steps."""
    describe: Callable[[Answers, Labels | None], ServerFacts]
    """Builds the facts from the JSON responses and the info labels; None: no
    metrics."""

    def short(self, metric: str) -> str:
        """A metric's name without the family prefix."""
        for prefix in self.prefixes:
            metric = metric.removeprefix(prefix)
        return metric


def refused_by(route: str, status: str) -> Callable[[Labels], str | None]:
    """What counts refusals by these labels, as ``/v1/completions 4xx``."""

    def kind(labels: Labels) -> str | None:
        place, told = labels.get(route, ""), labels.get(status, "")
        asks = asks_model(place, labels.get("method", "POST"))
        return f"{place} {told}" if asks and told[:1] in {"4", "5"} else None

    return kind


def models_of(answers: Answers) -> list[Mapping[str, Any]]:
    """The model entries of ``/v1/models``, whatever form the response has."""
    answer = answers.get("/v1/models")
    data = answer.get("data") if isinstance(answer, Mapping) else None
    if not isinstance(data, list):
        return []
    return [each for each in data if isinstance(each, Mapping)][:100]


def model_names(answers: Answers) -> list[str]:
    return [text for each in models_of(answers) if (text := text_of(each.get("id")))]


def text_of(value: object) -> str | None:
    """The value if it is a non-empty string, cut to LONGEST."""
    return value[:LONGEST] if isinstance(value, str) and value else None


def count_of(value: object) -> int | None:
    """The value as a non-negative integer, if it is one or its decimal text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:18])
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    return None


def setting_of(value: object) -> str | None:
    """A scalar setting as text; None for empty or structured values."""
    if value is None or value == "" or not isinstance(value, str | int | float):
        return None
    return str(value)[:LONGEST]


def flag_of(text: str) -> Flag:
    """Parse a value written by Python's ``str``: a number, a bool, None or text."""
    named: dict[str, Flag] = {"None": None, "True": True, "False": False}
    if text in named:
        return named[text]
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text[:LONGEST])
            return number if math.isfinite(number) and abs(number) < 2**53 else None
    return text[:LONGEST]
