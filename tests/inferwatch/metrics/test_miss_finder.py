"""Each prompt that missed the prefix cache is told why."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import strategies as st

from inferwatch.metrics.cache import miss_finder
from inferwatch.metrics.cache.miss_finder import EndedPrompt, MissFinder, PromptMiss
from inferwatch.metrics.cache.misses import MissCause, PrefixMisses
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.scripted_prompts import BLOCK, S, ScriptedCache, Tokens


def tokens(seed: int, blocks: float) -> list[int]:
    """Tokens that no other seed has."""
    dice = random.Random(seed)
    return [dice.randrange(1 << 40) for _ in range(int(blocks * BLOCK))]


def explained(prompts: Sequence[EndedPrompt]) -> list[PromptMiss]:
    finder = MissFinder()
    found = [finder.take(each) for each in prompts]
    return [each for each in found if each is not None]


def result_of(prompts: Sequence[EndedPrompt]) -> PrefixMisses:
    finder = MissFinder()
    for each in prompts:
        finder.take(each)
    return finder.result(most=1_000)


@pytest.fixture
def cache() -> ScriptedCache:
    return ScriptedCache()


SHARED = tokens(1, 6)


def test_what_nothing_is_alike_to_is_new(cache: ScriptedCache) -> None:
    cache.ask(SHARED)
    cache.ask(tokens(2, 6))

    assert [each.main for each in explained(cache.prompts)] == [MissCause.NEW] * 2
    shown = result_of(cache.prompts)
    assert (shown.alone, shown.groups) == (2, ())


def test_what_was_found_whole_missed_nothing_but_its_last_block(
    cache: ScriptedCache,
) -> None:
    cache.ask(SHARED)
    cache.ask(SHARED)

    _, again = explained(cache.prompts)

    assert again.main is None
    assert again.tokens == {MissCause.LAST_BLOCK: BLOCK}  # the last token is computed


def test_a_time_stamp_in_front_makes_the_first_block_differ(
    cache: ScriptedCache,
) -> None:
    for minute in range(3):
        cache.ask([minute, *SHARED[1:], *tokens(minute + 5, 1.5)])

    first, *others = explained(cache.prompts)

    assert first.main is MissCause.NEW
    for each in others:
        assert each.main is MissCause.FIRST_DIFFERS
        assert each.differs_at == 0
        assert each.reordered == 5 * BLOCK  # all that they share but that block
        assert each.hit_tokens == 0


def test_what_differs_later_is_told_by_block_and_token(cache: ScriptedCache) -> None:
    changed = [*SHARED]
    changed[3 * BLOCK + 2] = -1
    cache.ask(SHARED)
    cache.ask([*changed, 0])

    _, miss = explained(cache.prompts)
    group = result_of(cache.prompts).groups[0]

    assert (miss.main, miss.differs_at) == (MissCause.DIFFERS_LATER, 3)
    assert miss.reordered == 2 * BLOCK
    assert (group.differs_at, group.differs_at_token, group.differing) == (3, 48, 1)
    assert group.requests == 2


def test_own_questions_behind_a_shared_text_could_not_be_hits(
    cache: ScriptedCache,
) -> None:
    for own in range(4):
        cache.ask([*SHARED, *tokens(own + 2, 2.5)])

    shown = result_of(cache.prompts)

    assert shown.groups[0].reordered_tokens == 0
    assert shown.groups[0].avoidable == ()
    prompts = {each.cause: each.requests for each in shown.groups[0].missed}
    assert prompts[MissCause.DIFFERS_LATER] == 3
    assert shown.sentence.endswith("hardly any of the others could have been")


def test_what_was_evicted_is_told_with_its_idle_time() -> None:
    cache = ScriptedCache(size=10)
    cache.ask(SHARED, took_s=0.5)
    cache.ask(tokens(2, 10))
    cache.ask([*SHARED, 1])

    miss = explained(cache.prompts)[-1]

    assert miss.main is MissCause.EVICTED
    assert miss.unlimited == miss.tokens[MissCause.EVICTED] == 6 * BLOCK
    assert {*miss.idle_ns} == {round(1.5 * S)}  # from its end, 0.5, until 2


def test_an_unlimited_cache_would_have_hit_what_is_called_so() -> None:
    dice = random.Random(7)
    texts = [tokens(seed, dice.randrange(1, 9)) for seed in range(12)]
    small, unlimited = ScriptedCache(size=20), ScriptedCache()
    for _ in range(300):
        asked = [*dice.choice(texts), *dice.choice(texts), dice.randrange(9)]
        small.ask(asked)
        unlimited.ask(asked)

    total = result_of(small.prompts).total

    hits = sum(each.cached_tokens or 0 for each in unlimited.prompts)
    assert 0 < total.hit_tokens < hits
    assert total.hit_tokens + total.unlimited_tokens == hits


@pytest.mark.parametrize("one_in", [1, 4])
def test_all_missed_tokens_have_a_cause(one_in: int) -> None:
    dice = random.Random(3)
    texts = [tokens(seed, dice.randrange(1, 60)) for seed in range(6)]
    cache = ScriptedCache(size=90, one_in=one_in)
    for _ in range(200):
        cut = dice.randrange(1, 40)
        salt = dice.choice([None, "a", "b"])
        cache.ask([*dice.choice(texts)[cut:], *dice.choice(texts)], salt=salt)

    shown = result_of(cache.prompts)

    total = shown.total
    assert sum(each.tokens for each in total.missed) == total.missed_tokens
    assert sum(each.requests for each in shown.groups) + shown.alone == shown.prompts
    for miss in explained(cache.prompts):
        missed = miss.prompt.prompt_tokens - miss.hit_tokens
        assert sum(miss.tokens.values()) == missed


def test_equal_tokens_under_another_salt_are_told_so(cache: ScriptedCache) -> None:
    cache.ask(SHARED, salt="a")
    cache.ask(SHARED, salt="b")
    cache.ask(SHARED, salt="a")

    _, other, same = explained(cache.prompts)

    assert other.main is MissCause.OTHER_SALT
    assert same.main is None
    assert len(result_of(cache.prompts).groups) == 1


def test_equal_tokens_for_another_adapter_are_told_so(cache: ScriptedCache) -> None:
    cache.ask(SHARED)
    cache.ask(SHARED, lora="sql")

    assert explained(cache.prompts)[1].main is MissCause.OTHER_ADAPTER


def test_equal_tokens_around_other_media_are_told_so(cache: ScriptedCache) -> None:
    first = cache.ask(SHARED, media=True)
    other = msgspec.structs.replace(
        first,
        scheduled_ns=5 * S,
        hashes=[first.hashes[0], *(each + 1 for each in first.hashes[1:])],
        cached_tokens=BLOCK,
    )

    assert explained([first, other])[1].main is MissCause.OTHER_MEDIA


def test_what_an_alike_prompt_was_computing_is_in_flight(cache: ScriptedCache) -> None:
    cache.ask(SHARED, took_s=3)
    cache.ask([*SHARED, 1], finds=2 * BLOCK)

    miss = explained(cache.prompts)[1]

    assert miss.main is MissCause.IN_FLIGHT
    assert miss.tokens[MissCause.IN_FLIGHT] == 4 * BLOCK
    assert miss.unlimited == 0


def test_no_prompt_below_a_block_can_hit(cache: ScriptedCache) -> None:
    cache.ask(SHARED[:BLOCK])
    cache.ask(SHARED[:BLOCK])

    shown = result_of(cache.prompts)

    assert shown.groups[0].missed[0].cause is MissCause.TOO_SHORT
    assert shown.groups[0].missed[0].tokens == 2 * BLOCK


def test_after_a_reset_nothing_was_evicted(cache: ScriptedCache) -> None:
    cache.ask(SHARED)
    cache.ask([*SHARED, 1], finds=0)
    finder = MissFinder([("engine-1", 0, round(0.7 * S)), ("engine-2", 0, S)])
    finder.take(cache.prompts[0])

    miss = finder.take(cache.prompts[1])

    assert miss is not None
    assert miss.main is MissCause.RESET


def test_what_was_never_computed_was_not_seen(cache: ScriptedCache) -> None:
    cache.ask(SHARED)
    cache.ask([*SHARED, 1], finds=0)
    aborted = msgspec.structs.replace(cache.prompts[0], ready_ns=None)

    assert explained([aborted, cache.prompts[1]])[1].main is MissCause.NEW


def test_answers_that_come_back_in_a_prompt_are_hits(cache: ScriptedCache) -> None:
    answer = tokens(9, 3)
    cache.ask(SHARED, output=answer)
    cache.ask([*SHARED, *answer, *tokens(8, 2)])

    miss = explained(cache.prompts)[1]

    assert (miss.differs_at, miss.hit_tokens) == (9, 9 * BLOCK)


def test_without_plain_hashes_new_and_differing_are_not_told_apart(
    cache: ScriptedCache,
) -> None:
    cache.ask(SHARED)
    (old,) = cache.prompts

    miss = explained([msgspec.structs.replace(old, plain=[])])[0]

    assert miss.main is MissCause.UNKNOWN


def test_where_prompts_part_is_told_of_those_that_are_alike_again(
    cache: ScriptedCache,
) -> None:
    for minute in range(2):
        cache.ask([minute, *SHARED[1:], 7])
    other = tokens(5, 4)
    for own in range(6):
        cache.ask([*other, *tokens(own + 20, 2)])

    total = result_of(cache.prompts).total

    assert (total.differs_at, total.differing) == (0, 1)


def test_the_sentence_names_what_could_have_been_hits(cache: ScriptedCache) -> None:
    for minute in range(4):
        cache.ask([minute, *SHARED[1:], 7])

    shown = result_of(cache.prompts)

    assert shown.sentence == (
        "Of 388 prompt tokens 0% were found; 62% stood behind something that changes, "
        "of 3 prompts at block 0, token 0"
    )


def test_engines_with_blocks_of_several_sizes_are_told_together(
    cache: ScriptedCache,
) -> None:
    for minute in range(4):
        cache.ask([minute, *SHARED[1:], 7])
    other = msgspec.structs.replace(
        cache.prompts[0],
        key="engine-2/0",
        source="engine-2",
        block_tokens=2 * BLOCK,
        prompt_tokens=3 * BLOCK,
        prompt_blocks=1,
        hashes=[1],
        plain=[2],
    )

    shown = result_of([*cache.prompts, other])

    assert shown.total.differs_at_token is None
    assert shown.sentence.endswith("something that changes, of 3 prompts at block 0")


def test_what_hashes_do_not_tell_is_not_said_to_be_no_loss(
    cache: ScriptedCache,
) -> None:
    told = [cache.ask(tokens(20 + own, 6.0625)) for own in range(3)]
    older = [msgspec.structs.replace(each, plain=[]) for each in told]

    assert result_of(older).sentence == (
        "Of 291 prompt tokens 0% were found; why 99% were not is not known"
    )


def test_what_hashes_do_not_tell_is_told_beside_what_they_do(
    cache: ScriptedCache,
) -> None:
    told = [cache.ask([*SHARED[:BLOCK], *tokens(30 + own, 9)]) for own in range(9)]
    older = [msgspec.structs.replace(each, plain=[]) for each in told]

    assert result_of(older).sentence == (
        "Of 1,440 prompt tokens 8.9% were found; hardly any was evicted, and this "
        "probe tells no more; why 10% were not is not known"
    )


def test_prompts_whose_hits_nobody_told_are_not_judged(cache: ScriptedCache) -> None:
    told = cache.ask(SHARED)
    silent = msgspec.structs.replace(told, cached_tokens=None)

    shown = result_of([silent])

    assert (shown.prompts, shown.unknown) == (0, 1)
    assert shown.hit_share is None


class TestSampledPools:
    """Of a large pool, only some of the chained hashes are reported."""

    @pytest.fixture
    def cache(self) -> ScriptedCache:
        return ScriptedCache(one_in=8)

    def test_the_first_blocks_are_told_as_exactly_as_ever(
        self, cache: ScriptedCache
    ) -> None:
        changed = [*SHARED]
        changed[3 * BLOCK] = -1
        cache.ask(SHARED)
        cache.ask(changed)
        cache.ask(SHARED, salt="b")

        _, differs, salted = explained(cache.prompts)

        assert (differs.main, differs.differs_at) == (MissCause.DIFFERS_LATER, 3)
        assert salted.main is MissCause.OTHER_SALT
        assert not differs.estimated

    def test_what_lies_behind_them_is_an_estimate(self, cache: ScriptedCache) -> None:
        long = tokens(4, 100)
        cache.ask(long)
        cache.ask([*long, 1], finds=0)

        shown = result_of(cache.prompts)
        (evicted,) = (e for e in shown.total.missed if e.cause is MissCause.EVICTED)

        assert shown.estimated
        assert 0.6 * len(long) < evicted.tokens <= len(long)


def test_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch, cache: ScriptedCache
) -> None:
    monkeypatch.setattr(miss_finder, "MOST_KNOWN", 50)
    monkeypatch.setattr(miss_finder, "MOST_GROUPS", 5)
    finder = MissFinder()
    for seed in range(60):
        cache.ask(tokens(seed, 4))
        finder.take(cache.prompts[-1])

    assert 25 <= len(finder._chained) <= 54
    assert 25 <= len(finder._alone) <= 54
    assert len(finder._groups) == 5
    assert finder.result().total.requests == 60


def differing(text: Tokens, at: int) -> list[int]:
    return [*text[:at], -1, *text[at + 1 :]]


def test_groups_are_of_alike_prompts_the_costliest_first(cache: ScriptedCache) -> None:
    long, short = tokens(1, 20), tokens(2, 3)
    for at in range(4):
        cache.ask(differing(long, at))
        cache.ask(differing(short, at))

    shown = result_of(cache.prompts)

    assert [each.requests for each in shown.groups] == [4, 4]
    assert shown.groups[0].prompt_tokens == 4 * len(long)
    assert shown.groups_seen == 2


def test_what_was_hit_of_a_block_would_not_be_hit_again(cache: ScriptedCache) -> None:
    cache.ask(SHARED)
    first = tokens(2, 1)
    cache.ask([*first, *SHARED[BLOCK:]], finds=2 * BLOCK + 5)  # as other tiers may

    (_, miss) = explained(cache.prompts)

    assert miss.hit_tokens + miss.reordered == 5 * BLOCK  # all that can be found


PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), max_size=7),  # texts, one after the other
        st.integers(0, BLOCK - 1),  # tokens beyond them
        st.none() | st.integers(-1, 8 * BLOCK),  # what was found
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([0.1, 0.5, 2.5]),
    ),
    max_size=12,
)


@drawn(50, 2_000, PROMPTS, st.sampled_from([1, 4]))
def test_hits_and_those_that_would_have_been_never_exceed_the_prompt(
    asked: list[tuple[list[int], int, int | None, str | None, float]], one_in: int
) -> None:
    cache = ScriptedCache(one_in=one_in)
    for texts, rest, finds, salt, took_s in asked:
        text = [each for seed in texts for each in tokens(seed, 1)]
        cache.ask([*text, *range(rest)], finds=finds, salt=salt, took_s=took_s)

    for miss in explained(cache.prompts):
        missed = miss.prompt.prompt_tokens - miss.hit_tokens
        assert 0 <= miss.unlimited <= missed
        assert 0 <= miss.reordered <= missed
        assert miss.unlimited + miss.reordered <= missed
        assert sum(miss.tokens.values()) == missed
    total = result_of(cache.prompts).total
    assert total.hit_tokens + total.unlimited_tokens <= total.prompt_tokens
    assert total.hit_tokens + (total.reordered_tokens or 0) <= total.prompt_tokens
