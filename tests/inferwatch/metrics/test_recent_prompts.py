"""The latest prompts are kept, and what they missed is found when asked."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import PromptBlocks
from inferwatch.metrics.cache import recent_prompts
from inferwatch.metrics.cache.miss_finder import EndedPrompt
from inferwatch.metrics.cache.misses import MissCause
from inferwatch.metrics.cache.recent_prompts import RecentPrompts, SavedPrompts
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.series.saving import Parts, WrittenParts
from tests.inferwatch.metrics.scripted_prompts import BLOCK, S, ScriptedCache

TEXT = [*range(100, 100 + 6 * BLOCK)]


def told(asked: int = 8, every_s: float = 1.0, **changes: Any) -> RecentPrompts:
    """Prompts that differ in their first token, a second apart, from 0 on."""
    recent, cache = RecentPrompts(), ScriptedCache()
    for n in range(asked):
        cache.now_s = n * every_s
        cache.ask([n, *TEXT])
    for n, each in enumerate(cache.prompts):
        take(recent, n, each, **changes)
    return recent


def take(recent: RecentPrompts, n: int, asked: EndedPrompt, **changes: Any) -> None:
    blocks = PromptBlocks(
        source="engine-1",
        t_ns=asked.end_ns,
        ordinal=n,
        prompt_blocks=asked.prompt_blocks,
        total_blocks=asked.prompt_blocks,
        hashes=asked.hashes,
        block_tokens=changes.get("block_tokens", BLOCK),
        plain=changes.get("plain", asked.plain),
        prompt_tokens=asked.prompt_tokens,
    )
    request = Request(
        source="engine-1",
        seen_ns=0,
        request_id=f"r{n}",
        scheduled_ns=asked.scheduled_ns,
        first_ns=asked.ready_ns,
        cached_tokens=0,
    )
    recent.take(blocks, changes.get("request", request))


def saved_and_restored(recent: RecentPrompts) -> RecentPrompts:
    parts, after = Parts(), RecentPrompts()
    kept = msgspec.msgpack.encode(recent.saved(parts))
    saved = msgspec.msgpack.decode(kept, type=SavedPrompts)
    after.restore(saved, WrittenParts(parts.lasting, parts.passing))
    return after


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

    judged = recent.judged(13 * S)

    assert judged is not None
    assert judged.prompts == 10  # those that had ended by 10 s
    assert judged.span_s == 9.0
    assert recent.judged(19 * S) is judged
    later = recent.judged(21 * S)
    assert later is not None
    assert later.prompts == 15
    assert recent.judged(75 * S) != later, "some ended more than a minute before"
    assert told(5).judged(5 * S) is None


@pytest.mark.parametrize("rate", [100, 250, 400])
def test_at_any_rate_findings_rest_on_the_latest_prompts_of_the_tenth_second(
    rate: int,
) -> None:
    recent = told(16 * rate, every_s=1 / rate)  # more than are kept came since 10 s

    judged = recent.judged(16 * S)

    assert judged is not None
    assert judged.prompts == recent_prompts.MOST_PROMPTS
    assert judged.span_s == pytest.approx(judged.prompts / rate, rel=0.01)
    worst = judged.worst
    assert worst is not None
    assert worst.cause is MissCause.FIRST_DIFFERS


@pytest.mark.parametrize("copied", [deepcopy, saved_and_restored])
@pytest.mark.parametrize("asked_before", [False, True])
def test_findings_do_not_change_where_a_checkpoint_or_copy_was_made(
    copied: Callable[[RecentPrompts], RecentPrompts], *, asked_before: bool
) -> None:
    recent = told(1_500, every_s=0.01)
    if asked_before:
        recent.judged(13 * S)

    copy = copied(recent)

    judged = recent.judged(15 * S)
    assert judged is not None
    assert judged.prompts == recent_prompts.MOST_PROMPTS
    assert copy.judged(15 * S) == judged
    for each in (recent, copy):
        each.reset("engine-1", 0, 15 * S)
    assert copy.judged(25 * S) == recent.judged(25 * S) != judged


def test_who_asks_at_the_tenth_second_changes_nothing_later() -> None:
    asked, silent = told(10), told(10)
    asked.judged(10 * S)
    cache = ScriptedCache()
    for n, now_s in enumerate((9.2, 9.8)):  # the first of them was told late
        cache.now_s = now_s
        prompt = cache.ask(TEXT)
        for each in (asked, silent):
            take(each, 20 + n, prompt)

    assert asked.judged(12 * S) == silent.judged(12 * S)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_prompts, "MOST_PROMPTS", 5)

    kept = told().over(9 * S, None)

    assert kept is not None
    assert kept.prompts == 5

    monkeypatch.setattr(recent_prompts, "MOST_PLAIN", 4)
    monkeypatch.setattr(recent_prompts, "MOST_HASHES", 25)  # six and four of each
    kept = told().over(9 * S, None)
    assert kept is not None
    assert kept.prompts == 2


def test_of_the_numbers_a_peer_tells_no_more_are_kept_than_a_probe_has() -> None:
    recent = told(3, plain=[*range(200_000)])

    assert {len(each.plain) for each in recent._prompts} == {32}
    assert recent._hashes == 3 * (6 + 32)


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
