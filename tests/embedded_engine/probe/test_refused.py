"""What is kept of a refused request, and what is not, whatever a web server answers.

vLLM's own refusals: ``test_refused_engine``.
"""

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Message

from collectors.contract.readings import Refusal, RefusalReason, Refusals
from collectors.http import guests
from embedded_engine.probe.hooks import Fuse
from embedded_engine.probe.probe import Probe
from embedded_engine.probe.tap import refusal_tap
from embedded_engine.probe.tap.refusal_tap import BODIES_PER_S, RefusalTap

COMPLETIONS = "/v1/completions"
LONG = (
    "This model's maximum context length is 2048 tokens. However, your prompt contains "
    "3100 input tokens, which exceeds this limit even without any output tokens."
)
LONGER = (
    "The decoder prompt (length 3100) is longer than the maximum model length of 2048. "
    "Make sure that `max_model_len` is no smaller than the number of text tokens."
)
AT_LEAST = LONG.replace("3100", "at least 2049")


class VLLMError(Exception):
    """Answered as vLLM answers its own."""

    status = 400
    param: str | None = None


class VLLMValidationError(VLLMError):
    param = "n"


class QueueOverflowError(VLLMError):
    status = 503


class EngineDeadError(VLLMError):
    status = 500


class GenerationError(VLLMError):
    status = 500


class EngineGenerateError(VLLMError):
    status = 500


RAISED = {each.__name__: each for each in VLLMError.__subclasses__()}


class Body(BaseModel):
    prompt: str
    error: str = ""
    message: str = "the secret"
    logit_bias: dict[str, float] = {}


def add_request(body: Body) -> None:
    """As in AsyncLLM, whose engine is dead."""
    raise RAISED[body.error](body.message)


def server() -> FastAPI:
    """It answers like vLLM's."""
    app = FastAPI()

    @app.exception_handler(VLLMError)
    async def answer(_: Request, error: VLLMError) -> JSONResponse:
        told = {"message": str(error), "type": "BadRequestError", "param": error.param}
        return JSONResponse({"error": told}, status_code=error.status)

    @app.post(COMPLETIONS)
    async def complete(body: Body) -> Response:
        if body.error.isdecimal():
            raise HTTPException(int(body.error), body.message)
        if body.error == "model":
            told = {"message": body.message, "param": "model", "code": 404}
            return JSONResponse({"error": told}, status_code=404)
        if body.message == "before":
            add_request(body)
        if body.error:
            raise RAISED[body.error](body.message)
        return StreamingResponse(iter([b"a", b"b"]))

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=503)

    return app


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusalTap]:
    """A tap on the responses of this process."""
    tap, blown = RefusalTap(), list[str]()
    (hook,) = tap.hooks().values()
    around = hook.around(Response.__call__, Fuse(blown.append))
    monkeypatch.setattr(Response, "__call__", around)
    yield tap
    assert not blown


def send(
    *bodies: Mapping[str, object], path: str = COMPLETIONS, method: str = "POST"
) -> None:
    async def all_of_them() -> None:
        transport = httpx.ASGITransport(server(), raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://server"
        ) as client:
            for body in bodies:
                await client.request(method, path, json=body)

    asyncio.run(all_of_them())


def refused(tap: RefusalTap) -> list[Refusal]:
    news = tap.news()
    assert news is not None
    return news.refused


@pytest.mark.parametrize(
    ("body", "status", "reason", "parameter"),
    [
        ({"error": "VLLMValidationError"}, 400, RefusalReason.INVALID, "n"),
        ({"error": "QueueOverflowError"}, 503, RefusalReason.QUEUE_FULL, None),
        (
            {"error": "EngineDeadError", "message": "before"},
            500,
            RefusalReason.ENGINE_DEAD,
            None,
        ),
        ({"error": "model"}, 404, RefusalReason.UNKNOWN_MODEL, None),
        ({"error": "401"}, 401, RefusalReason.UNAUTHORISED, None),
        ({"error": "418"}, 418, RefusalReason.OTHER, None),
        ({"error": "400"}, 400, RefusalReason.INVALID, None),
        (
            {"error": "VLLMValidationError", "message": "Client disconnected"},
            400,
            RefusalReason.CANCELLED,
            None,
        ),
        ({"logit_bias": {"the secret": "x"}}, 422, RefusalReason.INVALID, None),
    ],
)
def test_a_refusal_has_a_reason_and_nothing_that_a_client_wrote(
    tap: RefusalTap,
    body: dict[str, object],
    status: int,
    reason: RefusalReason,
    parameter: str | None,
) -> None:
    send({"prompt": "the secret"} | body, {"prompt": "the secret"} | body)

    assert refused(tap) == [
        Refusal(
            route=COMPLETIONS,
            method="POST",
            status=status,
            reason=reason,
            parameter=parameter,
            count=2,
            new=2,
        )
    ]


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        (LONG, 3100),
        (AT_LEAST, None),  # vLLM stopped to count there
        ("max_tokens=3100 cannot be greater than max_model_len=2048.", 3100),
        (LONGER, 3100),
    ],
)
def test_what_is_too_long_says_by_how_much(
    tap: RefusalTap, message: str, asked: int | None
) -> None:
    send({"prompt": "", "error": "VLLMValidationError", "message": message})

    (told,) = refused(tap)
    assert told.reason is RefusalReason.TOO_LONG
    assert (told.asked_tokens, told.allowed_tokens) == (asked, 2048)


def test_what_is_turned_away_before_it_is_routed_has_its_route(tap: RefusalTap) -> None:
    """As vLLM's own middleware does where a key is missing."""

    async def turn_away(path: str) -> None:
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        response = JSONResponse({"error": "Unauthorized"}, status_code=401)
        await response(scope, never, dropped)

    for path in (COMPLETIONS, "/v1/secret", "/health"):
        asyncio.run(turn_away(path))

    assert [(each.route, each.status, each.reason) for each in refused(tap)] == [
        (COMPLETIONS, 401, RefusalReason.UNAUTHORISED),
        ("other", 401, RefusalReason.OTHER),
    ]


async def never() -> Message:
    """Fail: nobody reads a request that is turned away."""
    raise AssertionError("the request was read")


async def dropped(_: Message) -> None:
    """Send it to nobody."""


def test_what_the_engine_had_is_no_refusal(tap: RefusalTap) -> None:
    had = ("GenerationError", "EngineGenerateError", "EngineDeadError")
    send({"prompt": ""}, *({"prompt": "", "error": each} for each in had))
    send({}, path="/health", method="GET")

    assert refused(tap) == []


def test_a_report_is_made_once_and_only_of_news(tap: RefusalTap) -> None:
    assert refused(tap) == []  # it says that refusals are counted
    assert tap.news() is None
    send({"prompt": "", "error": "400"})
    assert [(each.count, each.new) for each in refused(tap)] == [(1, 1)]
    send({"prompt": "", "error": "400"}, {"prompt": "", "error": "400"})

    assert [(each.count, each.new) for each in refused(tap)] == [(3, 2)]
    assert tap.news() is None


def test_a_flood_of_paths_that_are_not_there_is_one_kind(
    tap: RefusalTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        send({}, path=f"/v1/secret/{number}", method=f"M{number}")
    assert [(each.route, each.count) for each in refused(tap)] == [("other", 20)]

    monkeypatch.setattr(refusal_tap, "MOST_KINDS", 3)
    send(*({"prompt": "", "error": str(status)} for status in range(410, 450)))
    told = refused(tap)
    assert len(told) == 4
    assert sum(each.count for each in told) == 60


def test_of_a_flood_only_some_bodies_are_looked_into(
    tap: RefusalTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guests, "monotonic_ns", lambda: 2**62)  # it stands still
    send(*[{"prompt": "", "error": "VLLMValidationError"}] * (BODIES_PER_S + 7))
    send({"prompt": "", "error": "QueueOverflowError"})  # its class says enough

    assert [(each.status, each.reason, each.count) for each in refused(tap)] == [
        (400, RefusalReason.INVALID, BODIES_PER_S),
        (400, RefusalReason.OTHER, 7),
        (503, RefusalReason.QUEUE_FULL, 1),
    ]
    assert tap.looks == BODIES_PER_S + 8


def test_a_body_nested_too_deep_does_not_blow_the_fuse(tap: RefusalTap) -> None:
    async def answer() -> None:
        scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": []}
        await Response(b"[" * 40_000, status_code=400)(scope, never, dropped)

    asyncio.run(answer())

    assert [each.reason for each in refused(tap)] == [RefusalReason.INVALID]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/kv_event_sources"])
def test_what_inferwatch_asks_an_application_for_is_not_counted(
    tap: RefusalTap, path: str
) -> None:
    async def answer() -> None:
        scope = {"type": "http", "method": "GET", "path": path, "headers": []}
        await Response(status_code=404)(scope, never, dropped)

    asyncio.run(answer())

    assert tap.looks == 1
    assert refused(tap) == []


def test_what_is_asked_of_the_server_is_no_request_to_a_model(tap: RefusalTap) -> None:
    async def answer(path: str, method: str) -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        route = SimpleNamespace(path=path)
        response = Response(status_code=404)
        await response(scope | {"route": route}, never, dropped)

    for path, method in (
        ("/v1/models", "GET"),
        ("/v1/responses/{response_id}", "GET"),
        ("/v1/load_lora_adapter", "POST"),
        ("/generate", "POST"),
    ):
        asyncio.run(answer(path, method))

    assert [(each.route, each.count) for each in refused(tap)] == [
        ("other", 2),
        ("other", 1),
        ("/generate", 1),
    ]


@pytest.mark.parametrize(("has_front", "reports"), [(True, 1), (False, 0)])
def test_a_process_with_an_api_server_tells_also_beside_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, *, has_front: bool, reports: int
) -> None:
    probe = Probe("e")
    monkeypatch.setattr(probe, "_story", Mock(steps=0, members=0))
    monkeypatch.setattr(probe, "totals", Mock())
    monkeypatch.setattr(probe, "_has_front", has_front)

    told = [each for each in probe.beat() if isinstance(each, Refusals)]

    assert len(told) == reports


def test_only_kinds_with_news_are_told_and_all_to_late_joiners(
    tap: RefusalTap, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, kept = Probe("e"), dict[str, Refusals]()
    monkeypatch.setattr(probe, "_refusals", tap)
    monkeypatch.setattr(probe, "_has_front", True)
    monkeypatch.setattr(probe, "_keep", kept.__setitem__)
    send({"prompt": "", "error": "400"})
    (first,) = probe.beat()
    send({"prompt": "", "error": "418"})

    (told,) = probe.beat()

    assert isinstance(first, Refusals)
    assert first.whole
    assert isinstance(told, Refusals)
    assert not told.whole
    assert [each.status for each in told.refused] == [418]
    assert [each.status for each in kept["refused"].refused] == [400, 418]
