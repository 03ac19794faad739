"""Builders of readings: every field has a sensible default, tests name what matters."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from collectors.readings import EventKind, RequestEvent, Step, Vantage

ENGINE = "engine-1"
MS = 1_000_000


@pytest.fixture
def make_step() -> Callable[..., Step]:
    """``make_step(end_ms, {ordinal: produced}, **fields)``: a step of 10 ms.

    Members decode one token each unless ``scheduled`` says otherwise.
    """

    def make(
        end_ms: float,
        produced: dict[int, int] | None = None,
        *,
        scheduled: Sequence[int] | None = None,
        **fields: Any,
    ) -> Step:
        members = produced or {}
        end_ns = round(end_ms * MS)
        duration_ns = round(fields.pop("duration_ms", 10) * MS)
        return Step(
            **{
                "source": ENGINE,
                "index": 0,
                "start_ns": end_ns - duration_ns,
                "end_ns": end_ns,
                "duration_ns": duration_ns,
                "decode_requests": len(members),
                "decode_tokens": len(members),
                "running": len(members),
                "members": list(members),
                "scheduled": list(scheduled or [1] * len(members)),
                "produced": list(members.values()),
                **fields,
            }
        )

    return make


@pytest.fixture
def make_event() -> Callable[..., RequestEvent]:
    """``make_event(t_ms, kind, request_id, **fields)``; the vantage follows the kind.

    Arrived and first_token are the front end's, the others the engine's unless said.
    """

    def make(
        t_ms: float, kind: EventKind, request_id: str = "r0", **fields: Any
    ) -> RequestEvent:
        front = kind in {EventKind.ARRIVED, EventKind.FIRST_TOKEN}
        return RequestEvent(
            **{
                "source": ENGINE,
                "t_ns": round(t_ms * MS),
                "kind": kind,
                "vantage": Vantage.FRONTEND if front else Vantage.ENGINE,
                "request_id": request_id,
                **fields,
            }
        )

    return make


Readings = list[Any]


@pytest.fixture
def make_life(
    make_step: Callable[..., Step], make_event: Callable[..., RequestEvent]
) -> Callable[..., tuple[Readings, Readings]]:
    """``make_life(start_ms, ordinal, tokens)``: one request, alone in its steps.

    Two streams, front end and engine: arrived +0 ms, added +1, scheduled +3, a first
    token at +10 and one every 10 ms (in the engine), the front end 1 ms behind.
    """

    def make(
        start_ms: float, ordinal: int, tokens: int = 3, reason: str = "stop"
    ) -> tuple[Readings, Readings]:
        name = f"r{ordinal}"
        last_ms = start_ms + 10 * tokens
        facts: dict[str, Any] = {"ordinal": ordinal, "prompt_tokens": 20}
        done: dict[str, Any] = {"reason": reason, "output_tokens": tokens}
        front = [
            make_event(start_ms, EventKind.ARRIVED, name, prompt_tokens=20),
            make_event(start_ms + 11, EventKind.FIRST_TOKEN, name),
            make_event(
                last_ms + 1,
                EventKind.FINISHED,
                name,
                vantage=Vantage.FRONTEND,
                **done,
            ),
        ]
        engine: Readings = [
            make_event(start_ms + 1, EventKind.ADDED, name, **facts),
            make_event(
                start_ms + 3, EventKind.SCHEDULED, name, cached_tokens=0, **facts
            ),
        ]
        engine += [
            make_step(start_ms + 10 * n, {ordinal: 1}, scheduled=[20 if n == 1 else 1])
            for n in range(1, tokens + 1)
        ]
        engine.append(make_event(last_ms, EventKind.FINISHED, name, **facts, **done))
        return front, engine

    return make
