import pytest

from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.sending.warmup import output_rate

CHUNK = b'data: {"choices":[{"text":"a"}]}\n\n'
SECOND_NS = 1_000_000_000


def answered(stamps_ns: list[int], tokens: int | None = None) -> Call:
    prompt = Prompt(token_ids=[300], max_tokens=9, kv_tokens=10)
    call = Call(
        index=0, external_id="", phase=Phase.WARMUP, intended_ns=0, prompt=prompt
    )
    for at_ns in stamps_ns:
        call.reply.read(CHUNK, at_ns)
    call.reply.output_tokens = tokens
    return call


def test_the_rate_counts_from_the_first_token_of_all() -> None:
    calls = [answered([5 * SECOND_NS, 6 * SECOND_NS]), answered([7 * SECOND_NS])]

    assert output_rate(calls, 8 * SECOND_NS) == pytest.approx(1)


def test_chunks_of_several_tokens_count_as_such() -> None:
    done = answered([SECOND_NS, 2 * SECOND_NS], tokens=8)
    running = answered([2 * SECOND_NS, 3 * SECOND_NS])

    assert output_rate([done, running], 5 * SECOND_NS) == pytest.approx(4)


def test_without_tokens_there_is_no_rate() -> None:
    assert output_rate([answered([])], SECOND_NS) is None
