"""Hook on an API server's responses: requests it refused, and why.

A response with 4xx or 5xx is looked at once, when it is sent; others cost a comparison,
and streams nothing. While the server answers an exception, that exception is the one
being handled, so its class is known; whatever else is known is in the response, of
which only names from short lists and two numbers are kept.
"""

import json
import os
import sys
from itertools import islice
from traceback import walk_tb
from typing import Any

from collectors.contract.clock import monotonic_ns
from collectors.contract.model_routes import asks_model
from collectors.contract.readings import ELSEWHERE, Refusal, RefusalReason, Refusals
from collectors.http.guests import TokenBucket
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe.vllm_names import Vllm

HTTP = "http"
REFUSED_FROM = 400
MOST_KINDS = 64
"""Kinds of refusals counted apart; of further ones only the route is kept."""
LONGEST_BODY = 50_000
"""A longer response is not looked into."""
BODIES_PER_S = 50
"""Responses that are looked into; further ones have no reason but OTHER."""
LONGEST_NAME = 40
MOST_CALLS = 200
"""Calls of a traceback that are looked at; an error that many requests share gathers
those of all."""
METHODS = frozenset({"GET", "POST"})
BY_STATUS = {
    400: RefusalReason.INVALID,
    401: RefusalReason.UNAUTHORISED,
    403: RefusalReason.UNAUTHORISED,
    413: RefusalReason.TOO_LONG,
    422: RefusalReason.INVALID,
    499: RefusalReason.CANCELLED,
}
"""Reasons of responses that say nothing else."""
PLAIN = frozenset(
    {
        RefusalReason.UNKNOWN_MODEL,
        RefusalReason.UNAUTHORISED,
        RefusalReason.QUEUE_FULL,
        RefusalReason.ENGINE_DEAD,
        RefusalReason.CANCELLED,
    }
)
"""Reasons that a response's body adds nothing to."""
Kind = tuple[str, str, int, RefusalReason, str | None]


class RefusalTap:
    """Counts the refusals of this process."""

    def __init__(self) -> None:
        self.looks = 0
        """Refused requests looked at so far."""
        self._bodies = TokenBucket(most=BODIES_PER_S, per_s=BODIES_PER_S)
        self._counts: dict[Kind, int] = {}
        self._lengths: dict[Kind, tuple[int | None, int | None]] = {}
        """Tokens asked for and allowed, of what was too long."""
        self._told: dict[Kind, int] | None = None
        """The counts of the latest report; None before the first."""

    def hooks(self) -> dict[str, Hook]:
        """Hooks by the key of the vLLM method they are for."""
        return {"answered": Hook(before=self._answered)}

    def news(self) -> Refusals | None:
        """Counts so far; None if nothing was refused since the last call."""
        counts, before = dict(self._counts), self._told
        if counts == before:
            return None
        self._told = counts
        return Refusals(
            t_ns=monotonic_ns(),
            pid=os.getpid(),
            refused=[
                self._refusal(kind, count, count - (before or {}).get(kind, 0))
                for kind, count in counts.items()
            ],
        )

    def _refusal(self, kind: Kind, count: int, new: int) -> Refusal:
        route, method, status, reason, parameter = kind
        asked, allowed = self._lengths.get(kind, (None, None))
        return Refusal(
            route=route,
            method=method,
            status=status,
            reason=reason,
            parameter=parameter,
            count=count,
            new=new,
            asked_tokens=asked,
            allowed_tokens=allowed,
        )

    def forget(self) -> None:
        """Start anew, in a forked child."""
        self._counts, self._lengths, self._told = {}, {}, None

    def _answered(self, response: Vllm, given: Given, _: int) -> None:
        if response.status_code < REFUSED_FROM:
            return
        scope = given[0]
        if scope["type"] == HTTP:
            self.looks += 1
            self._refused(scope, int(response.status_code), response.body)

    def _refused(self, scope: dict[str, Any], status: int, body: Vllm) -> None:
        route = _route(scope)
        error = sys.exc_info()[1]
        classes = _classes(error)
        if route is None or _was_had(error, classes):
            return
        method = scope["method"] if scope["method"] in METHODS else ELSEWHERE
        if route == ELSEWHERE:
            self._count((route, method, status, RefusalReason.OTHER, None))
            return
        reason = _reason(status, classes, None)
        if reason in PLAIN:
            self._count((route, method, status, reason, None))
            return
        if self._bodies.refill() < 1:
            self._count((route, method, status, RefusalReason.OTHER, None))
            return
        self._bodies.take()
        answer = _error(body)
        message, parameter = answer.get("message"), _name(answer.get("param"))
        text = message if isinstance(message, str) else ""
        invalid = "RequestValidationError" in classes
        lengths = None if invalid else _lengths(text)
        reason = _reason(status, classes, parameter)
        if lengths is not None:
            reason, parameter = RefusalReason.TOO_LONG, None
        elif text == names.CLIENT_LEFT:
            reason = RefusalReason.CANCELLED
        if reason is not RefusalReason.INVALID:
            parameter = None
        self._count((route, method, status, reason, parameter), lengths)

    def _count(
        self, kind: Kind, lengths: tuple[int | None, int | None] | None = None
    ) -> None:
        if kind not in self._counts and len(self._counts) >= MOST_KINDS:
            status = 500 if kind[2] >= 500 else REFUSED_FROM
            kind = (kind[0], ELSEWHERE, status, RefusalReason.OTHER, None)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if lengths is not None:
            asked, allowed = lengths
            before = self._lengths.get(kind, (None, None))[0]
            most = max((n for n in (asked, before) if n is not None), default=None)
            self._lengths[kind] = most, allowed


def _route(scope: dict[str, Any]) -> str | None:
    """The route's template, ELSEWHERE, or None for a route that is not counted."""
    template = getattr(scope.get("route"), "path", None)
    if template is None:
        path = scope["path"]
        template = path if path in names.WITHOUT_TEMPLATE else None
        if path in names.NOT_SERVED:
            return None
    if not isinstance(template, str):
        return ELSEWHERE
    if template in names.NOT_COUNTED:
        return None
    return template if asks_model(template, scope["method"]) else ELSEWHERE


def _classes(error: BaseException | None) -> set[str]:
    """Names of an exception's class and its base classes."""
    return set() if error is None else {each.__name__ for each in type(error).__mro__}


def _was_had(error: BaseException | None, classes: set[str]) -> bool:
    """Whether the engine had the request, which then failed."""
    if names.ENGINE_DEAD not in classes:
        return not names.HAD_BY_ENGINE.isdisjoint(classes)
    trace = None if error is None else error.__traceback__
    calls = [each.f_code.co_name for each, _ in islice(walk_tb(trace), MOST_CALLS)]
    return calls[-1:] != [names.ADD]


def _reason(status: int, classes: set[str], parameter: str | None) -> RefusalReason:
    for name, reason in names.REFUSED_FOR.items():
        if name in classes:
            return RefusalReason(reason)
    if status == 404 and parameter == "model":
        return RefusalReason.UNKNOWN_MODEL
    return BY_STATUS.get(status, RefusalReason.OTHER)


def _error(body: Vllm) -> dict[str, Any]:
    """The error object of a response, in the form of this vLLM or of older ones."""
    if len(body) > LONGEST_BODY:
        return {}
    try:
        answer = json.loads(bytes(body))
    except (ValueError, RecursionError):
        return {}
    error = answer.get("error", answer) if isinstance(answer, dict) else {}
    return error if isinstance(error, dict) else {}


def _name(parameter: object) -> str | None:
    """The parameter's name without what is inside it, which a client may have named."""
    if not isinstance(parameter, str):
        return None
    name = parameter.removeprefix("body.").partition(".")[0]
    short = len(name) <= LONGEST_NAME and name.isascii() and name.isidentifier()
    return name if short else None


def _lengths(message: str) -> tuple[int | None, int | None] | None:
    """Tokens asked for and allowed, if the message says that it was too long."""
    for pattern in names.TOO_LONG:
        if (found := pattern.search(message)) is not None:
            asked, allowed = found.group("asked"), found.group("allowed")
            return None if asked is None else int(asked), int(allowed)
    return None
