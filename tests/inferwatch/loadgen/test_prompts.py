from collections import Counter

import pytest

from collectors.contract.readings import Phase
from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import LoadPlan, RequestClass, SharedPrefixes
from inferwatch.loadgen.prompts.prompts import Prompt, Prompts
from inferwatch.loadgen.prompts.tokenizer import Vocabulary

PLAN = LoadPlan(
    run_id="run",
    model="m",
    prompt_tokens=Range(20, 40),
    output_tokens=Range(5, 9),
    shared_prefixes=SharedPrefixes(groups=3, tokens=8),
    token_ids=Range(100, 120),
)


def prompts(count: int, plan: LoadPlan = PLAN) -> list[Prompt]:
    made = Prompts(plan)
    return [made.make(Phase.STEADY, number) for number in range(count)]


def test_lengths_cover_their_ranges_to_both_ends() -> None:
    made = prompts(500)

    assert {len(each.token_ids) for each in made} == set(range(20, 41))
    assert {each.max_tokens for each in made} == set(range(5, 10))


def test_ids_stay_in_the_ordinary_range_to_both_ends() -> None:
    ids = {token for each in prompts(500) for token in each.token_ids}

    assert ids == set(range(100, 121))


def test_each_prompt_begins_with_one_of_the_shared_prefixes() -> None:
    prefixes = Counter(tuple(each.token_ids[:8]) for each in prompts(300))

    assert len(prefixes) == 3
    assert min(prefixes.values()) > 50


def test_what_follows_the_prefix_is_not_shared() -> None:
    own = {tuple(each.token_ids[8:]) for each in prompts(300)}

    assert len(own) == 300


def test_the_shared_prefix_does_not_count_as_kv_asked_for() -> None:
    one = prompts(1)[0]

    assert one.kv_tokens == len(one.token_ids) - 8 + one.max_tokens


def test_without_groups_the_whole_prompt_is_its_own() -> None:
    plan = LoadPlan(run_id="run", model="m")
    one = prompts(1, plan)[0]

    assert one.kv_tokens == len(one.token_ids) + one.max_tokens


def test_a_prompt_does_not_depend_on_those_made_before() -> None:
    assert Prompts(PLAN).make(Phase.STEADY, 9) == prompts(10)[9]


@pytest.mark.parametrize("other", [Phase.WARMUP, Phase.BURST])
def test_phases_have_prompts_of_their_own(other: Phase) -> None:
    assert Prompts(PLAN).make(other, 0) != prompts(1)[0]


def test_classes_come_by_their_shares_and_lengths() -> None:
    plan = LoadPlan(
        run_id="run",
        model="m",
        classes=(
            RequestClass(
                name="chat",
                share=9,
                prompt_tokens=fixed(20),
                output_tokens=fixed(5),
            ),
            RequestClass(
                name="document",
                share=1,
                prompt_tokens=fixed(3000),
                output_tokens=fixed(50),
            ),
        ),
    )

    made = prompts(1_000, plan)

    kinds = Counter(
        (each.class_name, len(each.token_ids), each.max_tokens) for each in made
    )
    assert set(kinds) == {("chat", 20, 5), ("document", 3000, 50)}
    assert 60 < kinds["document", 3000, 50] < 140


def test_words_say_the_same_lengths_and_keep_shared_prefixes() -> None:
    made = Prompts(PLAN, Vocabulary(exact=True))
    texts = [made.make(Phase.STEADY, number).text or "" for number in range(300)]

    prefixes = Counter(tuple(text.split()[:8]) for text in texts)
    assert len(prefixes) == 3
    assert {len(text.split()) for text in texts} == set(range(20, 41))


def test_the_length_of_an_estimated_prompt_is_not_claimed() -> None:
    estimated = Prompts(PLAN, Vocabulary()).make(Phase.STEADY, 0)
    counted = Prompts(PLAN, Vocabulary(exact=True)).make(Phase.STEADY, 0)

    assert estimated.tokens is None
    assert counted.tokens == len(counted.token_ids)
