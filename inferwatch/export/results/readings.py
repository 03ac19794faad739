"""A run of another tool as the readings of our own load generator."""

from collections.abc import Iterator

import msgspec

from collectors.readings import (
    AnyReading,
    ClockAnchor,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.export.results.found import Call, Result
from inferwatch.loadgen.exchange.error_message import shown
from inferwatch.metrics.load.error_text import error_text


def readings_of(result: Result, run_id: str, told_by: str) -> Iterator[AnyReading]:
    """In session time, which begins when the first request was due."""
    shape = result.shape
    if result.began_unix_ns is not None:
        yield ClockAnchor(
            t_ns=0,
            wall_ns=result.began_unix_ns,
            uncertainty_ns=result.uncertainty_ns,
            boot_id="",
        )
    yield _note(f"imported from {told_by}")
    for text in (result.ttft, *result.remarks):
        yield _note(text)
    plan = result.plan(run_id)
    if plan is not None:
        text = msgspec.json.encode(plan).decode()
        yield LoadPlanned(source=run_id, t_ns=0, plan=text)
    rate = None if shape is None else shape.rate_per_s
    words = "unknown load" if shape is None else shape.text
    started = f"{len(result.calls)} requests, {words}"
    yield LoadEvent(source=run_id, t_ns=0, kind=LoadKind.STARTED, text=started)
    yield LoadEvent(
        source=run_id,
        t_ns=0,
        kind=LoadKind.RATE,
        rate_per_s=rate,
        users=shape.users if shape else None,
        text=words,
    )
    yield from _requests(result, run_id)
    failed = sum(call.failure is not None for call in result.calls)
    yield LoadEvent(
        source=run_id,
        t_ns=duration_ns(result),
        kind=LoadKind.STOPPED,
        text=f"{len(result.calls)} sent, {failed} failed",
    )


def duration_ns(result: Result) -> int:
    """From the first due time to the last that is known."""
    return max(call.latest_ns for call in result.calls) - result.first_ns


def _note(text: str) -> Note:
    return Note(t_ns=0, kind=NoteKind.STARTED, text=text)


def _requests(result: Result, run_id: str) -> Iterator[AnyReading]:
    """As they ended: token times, then the record, as our generator tells them."""
    numbered = enumerate(sorted(result.calls, key=lambda call: call.due_ns))
    for index, call in sorted(numbered, key=lambda each: each[1].latest_ns):
        name = f"{run_id}-{call.name}"
        if call.first_ns is not None and call.gaps_ns is not None:
            yield TokenTimes(
                source=run_id,
                external_id=name,
                first_ns=call.first_ns - result.first_ns,
                gaps_ns=list(call.gaps_ns),
            )
        yield _record(call, index, name, result.first_ns, run_id)


def _record(
    call: Call, index: int, name: str, start_ns: int, run_id: str
) -> RequestRecord:
    def at(t_ns: int | None) -> int | None:
        return None if t_ns is None else t_ns - start_ns

    return RequestRecord(
        source=run_id,
        index=index,
        external_id=name,
        phase=Phase.WARMUP if call.warmup else Phase.STEADY,
        intended_ns=call.due_ns - start_ns,
        sent_ns=at(call.sent_ns),
        first_token_ns=at(call.first_ns),
        last_token_ns=at(call.last_ns),
        end_ns=at(call.end_ns),
        prompt_tokens=call.prompt_tokens,
        output_tokens=call.output_tokens,
        failure=call.failure,
        detail=None if call.detail is None else shown(error_text(call.detail)),
    )
