"""The latest prompts are kept, and what they missed is found when asked."""

from copy import deepcopy
from typing import Any

import pytest

from collectors.contract.readings import PromptBlocks
from inferwatch.metrics.cache import recent_prompts
from inferwatch.metrics.cache.misses import MissCause
from inferwatch.metrics.cache.recent_prompts import RecentPrompts
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.series.saving import Parts, WrittenParts
from tests.inferwatch.metrics.scripted_prompts import BLOCK, S, ScriptedCache

TEXT = [*range(100, 100 + 6 * BLOCK)]


def told(asked: int = 8, **changes: Any) -> RecentPrompts:
    """Prompts that differ in their first token, a second apart, from 0 on."""
    recent, cache = RecentPrompts(), ScriptedCache()
    for n in range(asked):
        cache.ask([n, *TEXT])
    for n, each in enumerate(cache.prompts):
        blocks = PromptBlocks(
            source="engine-1",
            t_ns=each.end_ns,
            ordinal=n,
            prompt_blocks=each.prompt_blocks,
            total_blocks=each.prompt_blocks,
            hashes=each.hashes,
            block_tokens=changes.get("block_tokens", BLOCK),
            plain=each.plain,
            prompt_tokens=each.prompt_tokens,
        )
        request = Request(
            source="engine-1",
            seen_ns=0,
            request_id=f"r{n}",
            scheduled_ns=each.scheduled_ns,
            first_ns=each.ready_ns,
            cached_tokens=0,
        )
        recent.take(blocks, changes.get("request", request))
    return recent


def test_prompts_of_the_window_are_counted_and_compared_with_those_before() -> None:
    recent = told()

    late = recent.over(8 * S, 3 * S)

    assert late is not None
    assert late.prompts == 3
    assert late.total.missed[0].cause is MissCause.FIRST_DIFFERS
    whole = recent.over(8 * S, None)
    assert whole is not None
    assert whole.prompts == 8


def test_the_answer_is_the_same_whoever_asked_before() -> None:
    asked, fresh = told(), told()
    asked.over(7 * S, 5 * S)

    assert asked.over(8 * S, 3 * S) == fresh.over(8 * S, 3 * S)


def test_findings_judge_by_every_tenth_second() -> None:
    recent = told(15)

    judged = recent.judged(13 * S, 60 * S)

    assert judged is not None
    assert judged.prompts == 10  # those that had ended by 10 s
    assert recent.judged(21 * S, 60 * S) is judged
    assert recent.judged(5 * S, 60 * S) is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_prompts, "MOST_PROMPTS", 5)

    kept = told().over(9 * S, None)

    assert kept is not None
    assert kept.prompts == 5

    monkeypatch.setattr(recent_prompts, "MOST_HASHES", 13)  # six of each
    kept = told().over(9 * S, None)
    assert kept is not None
    assert kept.prompts == 2


def test_it_is_saved_and_restored() -> None:
    before, after = told(50), RecentPrompts()
    before.reset("engine-1", 0, 60 * S)
    parts = Parts()

    saved = before.saved(parts)
    after.restore(saved, WrittenParts(parts.lasting, parts.passing))

    assert parts.lasting  # which the next checkpoint need not write again
    assert after.over(51 * S, None) == before.over(51 * S, None)
    assert after.saved(Parts()) == saved


def test_nothing_is_told_of_requests_nobody_knows() -> None:
    assert told(request=None).over(9 * S, None) is None
    assert told(block_tokens=None).over(9 * S, None) is None


def test_a_copy_goes_on_by_itself() -> None:
    recent = told(5)

    copy = deepcopy(recent)
    before = recent.over(6 * S, None)
    copy._prompts.popleft()
    copy.reset("engine-1", 0, 2 * S)

    assert recent.over(6 * S, None) == before != copy.over(6 * S, None)
    assert copy._prompts[0] is recent._prompts[1]  # shared, as they never change
