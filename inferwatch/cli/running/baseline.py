"""Measures a server with one request at a time, and prints what it took."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collectors.contract.clock import SessionClock
from collectors.http.server import Server
from collectors.servers.scrape import ServerScraper
from inferwatch.cli.running.load_plan import headers_of
from inferwatch.cli.running.recording import open_recorder
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.running.target import target_of
from inferwatch.cli.say import say, say_json
from inferwatch.errors import SourceError, StorageError, UsageError
from inferwatch.formatting import UNKNOWN, counted, format_durations, format_rate
from inferwatch.live.load.baseline import (
    PROMPT_TOKENS,
    BaselinePlan,
    fitting_lengths,
    measure,
    warm_up,
)
from inferwatch.live.load.load_session import LoadSession, probe_beside
from inferwatch.live.load.running_load import new_run_id
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.file import make_plan
from inferwatch.loadgen.target_server import TargetServer, endpoint_in, refuse_traffic
from inferwatch.metrics.configuration import Configuration, configuration_of
from inferwatch.metrics.load.baseline import LengthBaseline, Spread
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.replay.reference import BASELINE
from inferwatch.record.sessions.housekeeping import fitting_name, retag
from inferwatch.record.sessions.sessions import find
from inferwatch.record.writing.recorder import Recorder
from inferwatch.visible import visible

COLUMN = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineOptions:
    """The options of ``inferwatch baseline``, as the user gave them."""

    url: str | None
    model: str | None
    prompt_tokens: tuple[int, ...] | None
    output_tokens: int
    repeats: int
    endpoint: str | None
    uds: Path | None
    header: tuple[str, ...]
    insecure: bool
    anyway: bool
    as_json: bool
    database: Path | None
    no_record: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """The results of a baseline, and the configuration they are of."""

    lengths: Sequence[LengthBaseline]
    snapshot: Snapshot
    configuration: Configuration | None
    session_id: str | None
    tags: Sequence[str]


def run_baseline(options: BaselineOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: the server does not answer, is busy, or its options are wrong.
    """
    return asyncio.run(_run(options))


async def _run(options: BaselineOptions) -> int:
    target = await target_of(
        "baseline",
        options.url,
        options.uds,
        headers_of(options.header),
        verify_tls=not options.insecure,
    )
    plan, left_out = await _plan(options, target)
    _say_what_is_sent(options, target, plan, left_out)
    with interrupts() as stop:
        await _warm_up(target, plan, stop)
        result = await _measured(options, target, plan, stop)
        interrupted = stop.is_set()
    _print(options, target, plan, result)
    if interrupted:
        raise SourceError("interrupted: what was measured is not a whole baseline")
    return int(any(each.failed for each in result.lengths))


async def _plan(
    options: BaselineOptions, target: TargetServer
) -> tuple[BaselinePlan, tuple[int, ...]]:
    """Return the plan, and the prompt lengths that the model's context cannot hold."""
    served = await target.models()
    model = options.model or next(iter(served), None)
    if model is None:
        raise UsageError(f"{target.name} lists no models: name one with --model")
    requested = options.prompt_tokens or PROMPT_TOKENS
    longest = await target.longest(model)
    lengths = fitting_lengths(requested, options.output_tokens, longest)
    if not lengths:
        raise UsageError(
            f"{model} takes {longest} tokens, prompt and answer together: ask for less"
        )
    if not options.anyway:
        await refuse_traffic(target, "--anyway")
    like = make_plan(
        {
            "run_id": new_run_id(),
            "url": target.url,
            "uds": target.uds,
            "model": model,
            "headers": dict(target.headers),
            "verify_tls": target.verify_tls,
            "endpoint": options.endpoint or _endpoint(options) or "completions",
            "arrivals": "closed",
            "concurrency": 1,
            "requests": 1,
            "warmup_s": 0.0,
        }
    )
    plan = BaselinePlan(
        like=like,
        prompt_tokens=lengths,
        output_tokens=options.output_tokens,
        repeats=options.repeats,
    )
    return plan, tuple(each for each in requested if each not in lengths)


def _endpoint(options: BaselineOptions) -> str | None:
    return endpoint_in(options.url) if options.url else None


def _say_what_is_sent(
    options: BaselineOptions,
    target: TargetServer,
    plan: BaselinePlan,
    left_out: Sequence[int],
) -> None:
    each = counted(plan.warmups + plan.repeats, "request")
    lengths = ", ".join(f"{tokens:,}" for tokens in plan.prompt_tokens)
    text = (
        f"sending {target.name} {each} each with prompts of {lengths} tokens, one at a "
        f"time, {options.output_tokens} tokens to answer"
    )
    if left_out:
        tokens = ", ".join(f"{tokens:,}" for tokens in left_out)
        text += f"; {tokens} would not fit into what {plan.like.model} takes"
    say(f"inferwatch: {visible(text)}", err=True)


async def _warm_up(
    target: TargetServer, plan: BaselinePlan, stop: asyncio.Event
) -> None:
    session = LoadSession(SessionClock(), Pipeline(Model()), target)
    async with session.opened():
        await warm_up(session, plan, stop)


async def _measured(
    options: BaselineOptions,
    target: TargetServer,
    plan: BaselinePlan,
    stop: asyncio.Event,
) -> BaselineResult:
    clock = SessionClock()
    recorder = open_recorder(
        BASELINE,
        clock,
        database=options.database,
        name=fitting_name(f"{BASELINE} {plan.like.model}"),
        record=not options.no_record,
    )
    probe = await asyncio.to_thread(probe_beside, target)
    session = LoadSession(clock, Pipeline(Model(), recorder), target, probe)
    if probe is None:  # a probe's readings would be doubled
        session.watch_also(ServerScraper(clock, _server(target)))
    async with session.opened():
        lengths = await measure(session, plan, stop, lambda _: None)
        snapshot = session.snapshot()
    configuration = configuration_of(snapshot, plan.like.model)
    tags = (
        [configuration.exact_tag, configuration.model_tag]
        if configuration and not stop.is_set()
        else []
    )
    if recorder is not None and tags:
        _tag(recorder, tags)
    return BaselineResult(
        lengths=lengths,
        snapshot=snapshot,
        configuration=configuration,
        session_id=recorder.session_id if recorder else None,
        tags=tags,
    )


def _server(target: TargetServer) -> Server:
    return Server(
        url=target.url,
        uds=target.uds,
        headers=target.headers,
        insecure=not target.verify_tls,
    )


def _tag(recorder: Recorder, tags: Sequence[str]) -> None:
    try:
        row = find(recorder.path, recorder.session_id)
        retag(recorder.path, row.session, lambda before: [*before, *tags])
    except StorageError as error:
        say(f"inferwatch: it will not be found as a baseline: {error}", err=True)


def _print(
    options: BaselineOptions,
    target: TargetServer,
    plan: BaselinePlan,
    result: BaselineResult,
) -> None:
    if options.as_json:
        say_json(_as_json(target, plan, result))
        return
    say(visible(" · ".join(_head(target, plan, result))))
    say(
        f"one request at a time, {plan.repeats} of each length, {plan.output_tokens} "
        "tokens to answer; median (middle half)"
    )
    head = ("prompt", "TTFT", "TPOT", "tokens/s")
    say(f"{head[0]:>8}" + "".join(f"  {each:<{COLUMN}}" for each in head[1:]).rstrip())
    for each in result.lengths:
        say(_row(each))
    kv_bytes = _kv_bytes(result.snapshot)
    if kv_bytes is not None:
        say(f"KV cache: {kv_bytes:,} bytes a token")
    if (floor_s := _floor_s(result.snapshot)) is not None:
        (floor,) = format_durations((floor_s,))
        say(f"TPOT floor: {floor.strip()}, as far as the hardware goes")
    if result.session_id:
        place = f"kept as {result.session_id}"
        say(f"{place}: `a` on a screen holds the same configuration against it")


def _head(
    target: TargetServer, plan: BaselinePlan, result: BaselineResult
) -> list[str]:
    configuration = result.configuration
    parts = [configuration.version, *configuration.gpus] if configuration else []
    return [f"baseline of {plan.like.model}", target.name, *filter(None, parts)]


def _row(each: LengthBaseline) -> str:
    columns = (
        _times(each.ttft_s),
        _times(each.tpot_s),
        _rates(each.output_tokens_per_s),
    )
    failed = f"  {each.failed} failed: {each.first_failure}" if each.failed else ""
    row = f"{each.prompt_tokens:>8,}" + "".join(f"  {c:<{COLUMN}}" for c in columns)
    return row.rstrip() + visible(failed)


def _times(spread: Spread | None) -> str:
    if spread is None:
        return UNKNOWN
    texts = format_durations((spread.median, spread.p25, spread.p75))
    median, low, high = (text.strip() for text in texts)
    return f"{median} ({low.split()[0]}-{high.split()[0]})"


def _rates(spread: Spread | None) -> str:
    if spread is None:
        return UNKNOWN
    rates = (spread.median, spread.p25, spread.p75)
    median, low, high = (format_rate(rate).strip() for rate in rates)
    return f"{median} ({low}-{high})"


def _kv_bytes(snapshot: Snapshot) -> int | None:
    sizes = (each.kv_bytes_per_token for each in snapshot.engines)
    return next(filter(None, sizes), None)


def _floor_s(snapshot: Snapshot) -> float | None:
    """Return the least TPOT that memory and arithmetic allow for the decode steps."""
    return snapshot.limits.tpot_floor_s if snapshot.limits else None


def _as_json(
    target: TargetServer, plan: BaselinePlan, result: BaselineResult
) -> dict[str, Any]:
    return {
        "session_id": result.session_id,
        "target": {"url": target.url, "uds": target.uds, "model": plan.like.model},
        "configuration": asdict(result.configuration) if result.configuration else None,
        "tags": list(result.tags),
        "output_tokens": plan.output_tokens,
        "warmups": plan.warmups,
        "kv_bytes_per_token": _kv_bytes(result.snapshot),
        "tpot_floor_s": _floor_s(result.snapshot),
        "lengths": [asdict(each) for each in result.lengths],
    }
