"""Measures a server with one request at a time: the best latency it can reach."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from inferwatch.errors import SourceError
from inferwatch.live.load.load_session import LoadSession
from inferwatch.live.load.running_load import new_run_id
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.load.baseline import LengthBaseline, length_baseline

PROMPT_TOKENS = (32, 512, 2_048)
OUTPUT_TOKENS = 64
REPEATS = 5
WARMUPS = 2
"""Requests of each length that are not counted: they capture graphs and fill caches."""
OnLength = Callable[[LengthBaseline], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselinePlan:
    """The requests of a baseline: each prompt length in turn, one request at a time."""

    like: LoadPlan
    """The plan whose server, model and options are used."""
    prompt_tokens: tuple[int, ...] = PROMPT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    repeats: int = REPEATS
    warmups: int = WARMUPS

    def of(self, prompt_tokens: int, requests: int) -> LoadPlan:
        """Return a closed-loop plan for one length, with prompts never sent before."""
        return msgspec.structs.replace(
            self.like,
            run_id=new_run_id(),
            seed=secrets.randbelow(1 << 62),
            arrivals=Arrivals.CLOSED,
            concurrency=1,
            requests=requests,
            prompt_tokens=fixed(prompt_tokens),
            output_tokens=fixed(self.output_tokens),
            warmup_s=0.0,
        )


def fitting_lengths(
    prompt_tokens: Sequence[int], output_tokens: int, longest: int | None
) -> tuple[int, ...]:
    """Return the prompt lengths that fit the context length with the output tokens."""
    return tuple(
        each
        for each in prompt_tokens
        if longest is None or each + output_tokens <= longest
    )


async def warm_up(
    session: LoadSession, plan: BaselinePlan, stop: asyncio.Event
) -> None:
    """Send the warm-up requests; call it in a session that is not recorded.

    Raises:
        SourceError: the server answered no request.
    """
    for prompt_tokens in plan.prompt_tokens:
        if plan.warmups and not stop.is_set():
            await _length(session, plan.of(prompt_tokens, plan.warmups), stop)


async def measure(
    session: LoadSession, plan: BaselinePlan, stop: asyncio.Event, tell: OnLength
) -> list[LengthBaseline]:
    """Send the measured requests, and call ``tell`` with each length's result.

    Raises:
        SourceError: the server answered no request.
    """
    results = []
    for prompt_tokens in plan.prompt_tokens:
        run = plan.of(prompt_tokens, plan.repeats)
        measured = await _length(session, run, stop)
        if stop.is_set():
            break  # an interrupted length is not reported
        results.append(measured)
        tell(measured)
    return results


async def _length(
    session: LoadSession, plan: LoadPlan, stop: asyncio.Event
) -> LengthBaseline:
    run = await session.follow(plan, stop)
    measured = length_baseline(round(plan.prompt_tokens.mean), run.book.records)
    if measured.sent == measured.failed and not stop.is_set():
        why = measured.first_failure or "nothing came back"
        raise SourceError(
            f"{session.target.name} answers no prompt of {measured.prompt_tokens} "
            f"tokens: {why}"
        )
    return measured
