"""Decides on requests to change an engine's limits; knows no socket and no thread."""

from collections.abc import Callable
from typing import Any

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import LimitChange, LiveLimits
from collectors.probe.control import (
    BETWEEN_CHANGES_S,
    WATCHER_GONE_S,
    LimitAction,
    LimitAnswer,
    LimitRequest,
)
from embedded_engine.probe.control.live_limits import (
    LONGEST_REASON,
    SEQS,
    TOKENS,
    SchedulerLimits,
)

LONGEST_NAME = 64
"""Characters of a client's name."""
Caller = Any
"""A connected client; only its identity matters."""


class ControlDesk:
    """Handles requests, and restores the start-up values after a disconnect."""

    request = LimitRequest

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        between_s: float = BETWEEN_CHANGES_S,
        gone_s: float = WATCHER_GONE_S,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.limits = limits
        self.watcher: Caller | None = None
        """The client whose disconnection restores the start-up values."""
        self._between_ns = int(between_s * NS_PER_S)
        self._gone_ns = int(gone_s * NS_PER_S)
        self._now_ns = now_ns
        self._changed_ns: int | None = None
        self._due_ns: int | None = None
        self._logged = limits.wanted

    def answer(self, request: LimitRequest, caller: Caller) -> LimitAnswer:
        """Carry out a request, or refuse it with a reason."""
        refused = None
        if request.action is LimitAction.SET:
            refused = self._refusal(request)
            if refused is None:
                self._set(request, caller)
        elif request.action is LimitAction.RESET:
            refused = self.limits.ended
            if refused is None:
                self._reset(label(request.by))
        if refused is not None:
            refused = refused[:LONGEST_REASON]
        return LimitAnswer(limits=self.limits.wanted, refused=refused)

    def left(self, caller: Caller) -> None:
        """Handle the disconnection of a client."""
        if caller is self.watcher:
            self.watcher = None
            if self.limits.wanted.in_force:
                self._due_ns = self._now_ns() + self._gone_ns

    @property
    def due_in_s(self) -> float | None:
        """Seconds until ``look`` has to be called; None while it need not be."""
        if self._due_ns is None:
            return None
        return max(0, self._due_ns - self._now_ns()) / NS_PER_S

    def look(self) -> None:
        """Restore the start-up values if the client has been gone for too long."""
        if self._due_ns is not None and self._now_ns() >= self._due_ns:
            self._due_ns = None
            self._changed_ns = self._now_ns()
            by = self.limits.wanted.by
            self.limits.back(LimitChange.WATCHER_GONE, by=by)

    def news(self) -> str | None:
        """The limits, if they changed since the last call."""
        now = self.limits.wanted
        if now is self._logged:
            return None
        self._logged = now
        return (
            f"max_num_seqs {now.max_num_seqs} of {now.start_max_num_seqs}, "
            f"max_num_batched_tokens {now.max_num_batched_tokens} of "
            f"{now.start_max_num_batched_tokens}: {now.change}, by {now.by}"
        )

    def end(self, why: str) -> None:
        """Restore the start-up values for good."""
        self.limits.end(why)

    def _set(self, request: LimitRequest, caller: Caller) -> None:
        now = self.limits.wanted
        seqs, tokens = _requested_limits(request, now)
        self.limits.turn(
            LimitChange.SET, seqs, tokens, by=label(request.by), kept=request.keep
        )
        self._changed_ns = self._now_ns()
        self._due_ns = None
        self.watcher = None if request.keep else caller

    def _reset(self, by: str | None) -> None:
        self.watcher = self._due_ns = None
        if self.limits.wanted.in_force:
            self.limits.back(LimitChange.RESET, by=by)
            self._changed_ns = self._now_ns()

    def _refusal(self, request: LimitRequest) -> str | None:
        """Why the request is refused; None if it is not."""
        limits, now = self.limits, self.limits.wanted
        if limits.ended is not None:
            return limits.ended
        if request.version is None:
            return "say which version of the limits that is a change of"
        if request.version != now.version:
            return (
                f"the limits are at version {now.version} by now, "
                f"not at {request.version}: look again"
            )
        seqs, tokens = _requested_limits(request, now)
        return (
            self._out_of_range(SEQS, seqs, now.max_num_seqs, 1)
            or self._out_of_range(
                TOKENS, tokens, now.max_num_batched_tokens, limits.least_tokens
            )
            or self._too_soon()
        )

    def _out_of_range(self, flag: str, value: int, now: int, least: int) -> str | None:
        start: int = getattr(self.limits.wanted, f"start_{flag}")
        if value != now and (why := self.limits.wanted.fixed.get(flag)) is not None:
            return f"{flag} cannot be changed here: {why}"
        if value != now and value > start:
            return f"{flag} {value} is above {start}, with which the engine was started"
        if value != now and value < least:
            return f"{flag} {value} is below {least}: nothing would run"
        return None

    def _too_soon(self) -> str | None:
        if self._changed_ns is None:
            return None
        left_ns = self._changed_ns + self._between_ns - self._now_ns()
        return f"wait {left_ns / NS_PER_S:.1f} s" if left_ns > 0 else None


def _requested_limits(request: LimitRequest, now: LiveLimits) -> tuple[int, int]:
    """The limits a request asks for; those it does not mention stay as they are."""
    seqs, tokens = request.max_num_seqs, request.max_num_batched_tokens
    return (
        now.max_num_seqs if seqs is None else seqs,
        now.max_num_batched_tokens if tokens is None else tokens,
    )


def label(by: str) -> str | None:
    """The client's name as one line of limited length; None if empty."""
    plain = "".join(c if c.isprintable() else " " for c in by[: 4 * LONGEST_NAME])
    return " ".join(plain.split())[:LONGEST_NAME] or None
