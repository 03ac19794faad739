"""Requests whose media take long are said to be slow by these."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from collectors.contract.readings import EngineInfo, EventKind, RequestEvent, Tick
from inferwatch.metrics.model.model import Model

MS = 1_000_000
S = 1_000 * MS


def test_slow_media_are_named_with_what_helps(make_life: Callable[..., Any]) -> None:
    model = Model()
    model.fold(
        EngineInfo(source="engine-1", t_ns=0, pid=1, model="m", vllm_version="0.32.0")
    )
    for number in range(40):
        front, engine = make_life(3_000 + 1_000 * number, ordinal=number)
        for each in (*front, *engine):
            model.fold(with_media(each) if isinstance(each, RequestEvent) else each)
        model.fold(Tick(t_ns=(number + 4) * S))

    (finding,) = (each for each in model.findings if each.name == "slow_by_media")

    assert "--mm-processor-cache-gb" in {each.flag for each in finding.knobs}


def with_media(event: RequestEvent) -> RequestEvent:
    """The arrival 2 s earlier: 1.9 s to fetch an image, 90 ms to preprocess it."""
    if event.kind is not EventKind.ARRIVED:
        return event
    came_ns = event.t_ns - 2 * S
    return replace(
        event,
        t_ns=came_ns,
        media_items=1,
        fetch_start_ns=came_ns,
        fetch_end_ns=came_ns + 1_900 * MS,
        preprocess_start_ns=came_ns + 1_900 * MS,
        preprocess_end_ns=came_ns + 1_990 * MS,
    )
