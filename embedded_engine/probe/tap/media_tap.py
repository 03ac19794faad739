"""Hooks on an API server's way from images, sounds and videos to tokens.

Media are fetched by tasks of a request, which share a list that its context holds, and
preprocessed by a thread, whose result the request sent to the engine is made of. Models
of text alone have none of it, and pay for none.
"""

from collections import OrderedDict
from contextvars import ContextVar
from typing import NamedTuple

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import AwaitedHook, Given, Hook
from embedded_engine.probe.vllm_names import Vllm

MOST_PREPROCESSED = 64
"""Requests between their preprocessing and the engine: more than ever are."""

Span = tuple[int, int]
_fetched: ContextVar[list[Span] | None] = ContextVar("inferwatch_media", default=None)


class MediaTimes(NamedTuple):
    """What the media of a request took before the engine had it."""

    items: int
    fetched: Span | None
    """From the first that was asked for to the last that came."""
    preprocessed: Span | None
    cached: int | None
    """Items whose preprocessing was in the multimodal cache."""


class MediaTap:
    """Hooks on the renderer and the media connector of this process."""

    def __init__(self) -> None:
        self._chat = AwaitedHook()
        self._preprocessed: OrderedDict[int, tuple[Vllm, Span, int | None]] = (
            OrderedDict()
        )
        """By identity of the prompt's tokens: they, when, and hits in the cache."""
        self._before: tuple[Vllm, int | None] = None, None
        """The statistics of the cache, and its hits, before what is under way."""

    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
        return {
            "renderer": Hook(self._renderer_born),
            "chat": self._chat,
            "fetched": AwaitedHook(self._has_fetched),
            "preprocessed": Hook(self._has_preprocessed, self._preprocesses),
        }

    def of(self, tokens: Vllm, items: int, arrived_ns: int) -> MediaTimes:
        """What the request with these prompt tokens spent; called in its context."""
        spans = [each for each in _fetched.get() or () if each[0] >= arrived_ns]
        fetched = None
        if spans:
            fetched = min(spans)[0], max(end_ns for _, end_ns in spans)
        done = self._preprocessed.get(id(tokens))
        if done is None or done[0] is not tokens:
            return MediaTimes(items, fetched, None, None)
        return MediaTimes(items, fetched, *done[1:])

    def _renderer_born(self, renderer: Vllm, *_: Vllm) -> None:
        if getattr(renderer, names.MM_PROCESSOR, None) is not None:
            self._chat.before = self._begins

    def _begins(self, *_: Vllm) -> None:
        _fetched.set([])

    def _has_fetched(
        self, _: Vllm, __: Given, ___: Vllm, entered: int, returned: int
    ) -> None:
        spans = _fetched.get()
        if spans is not None:
            spans.append((entered, returned))

    def _preprocesses(self, renderer: Vllm, *_: Vllm) -> None:
        stats = getattr(renderer, names.MM_CACHE_STATS, None)
        self._before = stats, getattr(stats, names.CACHE_HITS, None)

    def _has_preprocessed(
        self, renderer: Vllm, _: Given, result: Vllm, entered: int, returned: int
    ) -> None:
        stats, hits = self._before
        cached = None
        if hits is not None and getattr(renderer, names.MM_CACHE_STATS, None) is stats:
            cached = getattr(stats, names.CACHE_HITS) - hits
        tokens = result.get(names.PROMPT_IDS)
        self._preprocessed[id(tokens)] = tokens, (entered, returned), cached
        while len(self._preprocessed) > MOST_PREPROCESSED:
            self._preprocessed.popitem(last=False)
