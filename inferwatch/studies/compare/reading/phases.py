"""The time of each request by phase, whose sum is its E2EL to the nanosecond.

A request passes six moments: it arrives at the front end, is added to the engine, is
scheduled, gets its first and its last token, and its answer ends at the front end.
Between two moments that are known lies a phase; the rest is unknown, a phase as well.

Decode is split by the steps of the request's rank. Between the ends of two steps lie a
gap, in which none ran, and a step. A step with prompt tokens takes longer than one that
only decodes usually does; that excess is spent on the prompts of others. With running
sums at the ends of steps, a request's share is one difference.
"""

import sqlite3
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.metrics import RequestPhase
from inferwatch.studies.compare.reading.requests import (
    PROPER,
    UNKNOWN,
    ServerRequests,
    whole,
)
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.reading.token_gaps import TokenGaps
from inferwatch.studies.compare.statistics.resampling import BINS, Floats

STEP_COLUMNS = (
    "source",
    "rank",
    "step",
    "end_ns",
    "duration_ns",
    "prefill_tokens",
    "decode_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPhases:
    """The phases of a session's requests that ended normally."""

    came_ns: Ints
    spent_ns: dict[RequestPhase, Ints]
    """In the order of ``came_ns``; 0 where a phase is unknown, which UNKNOWN has."""

    def sums(self, span: ComparedSpan) -> dict[str, RatioSums]:
        """Mean seconds a request in each phase, by when requests came."""
        place = span.bin_of(self.came_ns)
        inside = place >= 0
        counts = np.bincount(place[inside], minlength=BINS).astype(np.float64)
        n = int(counts.sum())
        if not n:
            return {}
        return {
            phase: RatioSums(above=_binned_s(each, place), below=counts, n=n)
            for phase, each in self.spent_ns.items()
        }


def request_phases(
    connection: sqlite3.Connection,
    session: int,
    requests: ServerRequests,
    tokens: TokenGaps,
    span: ComparedSpan,
) -> RequestPhases | None:
    """The phases of each request; ``tokens`` must have read all gaps.

    None where no front end was watched, or no engine: there is nothing to split.
    """
    columns = requests.columns
    first_ns, last_ns, rank = tokens.ends()
    ended = columns[PROPER] == 1
    for name in ("arrived_ns", "finished_ns"):
        ended = ended & (columns[name] != UNKNOWN)
    if not ended.any() or not (columns["added_ns"][ended] != UNKNOWN).any():
        return None
    moments = np.array(
        [
            columns["arrived_ns"][ended],
            columns["added_ns"][ended],
            columns["scheduled_ns"][ended],
            first_ns[ended],
            last_ns[ended],
            columns["finished_ns"][ended],
        ]
    )
    api, queue, prefill, decode, send = _between(moments)
    others, stall, lost = _shares(
        connection, session, span, columns["source"][ended], rank[ended], moments[3:5]
    )
    stall = np.minimum(stall, decode)
    others = np.minimum(others, decode - stall)
    rest_ns = np.maximum(decode - stall - others - lost, 0)
    spent_ns = {
        RequestPhase.API: api,
        RequestPhase.QUEUE: queue,
        RequestPhase.PREFILL: prefill,
        RequestPhase.DECODE: rest_ns,
        RequestPhase.OTHERS: others,
        RequestPhase.STALL: stall,
        RequestPhase.SEND: send,
    }
    whole_ns = moments[-1] - moments[0]
    known_ns = np.sum(list(spent_ns.values()), axis=0)
    spent_ns[RequestPhase.UNKNOWN] = whole_ns - known_ns
    return RequestPhases(came_ns=requests.came_ns[ended], spent_ns=spent_ns)


def _between(moments: Ints) -> Ints:
    """The time between two moments that are known; else 0.

    Clocks of two processes may put a moment before the one before it, or after the
    end: it then counts as that one, so that no phase is negative.
    """
    known = moments != UNKNOWN
    ordered = np.maximum.accumulate(np.where(known, moments, moments[0]), axis=0)
    ordered = np.minimum(ordered, np.maximum(moments[-1], moments[0]))
    return np.where(known[1:] & known[:-1], np.diff(ordered, axis=0), 0)


def _shares(
    connection: sqlite3.Connection,
    session: int,
    span: ComparedSpan,
    source: Ints,
    rank: Ints,
    decoded: Ints,
) -> Ints:
    """What others' prompts, stalls and lost steps took of each request's decode."""
    steps = whole(connection, "steps", STEP_COLUMNS, session)
    found = np.zeros((3, len(source)), np.int64)
    known = (decoded != UNKNOWN).all(axis=0)
    for key in set(zip(steps["source"].tolist(), steps["rank"].tolist(), strict=True)):
        ours = (steps["source"] == key[0]) & (steps["rank"] == key[1])
        line = _StepLine.of({name: each[ours] for name, each in steps.items()}, span)
        these = known & (source == key[0]) & (rank == key[1])
        found[:, these] = line.between(*decoded[:, these])
    return found


@dataclass(frozen=True, slots=True)
class _StepLine:
    """Running sums at the ends of a rank's steps, in the order of time."""

    ends_ns: Ints
    upto_ns: Ints
    """Others' prompts, stalls and time of lost steps, before each end."""

    @classmethod
    def of(cls, steps: dict[str, Ints], span: ComparedSpan) -> "_StepLine":
        order = np.argsort(steps["end_ns"], kind="stable")
        ends_ns = steps["end_ns"][order]
        lasted_ns = np.diff(ends_ns, prepend=ends_ns[0])
        ran_ns = np.minimum(steps["duration_ns"][order], lasted_ns)
        gaps_ns = lasted_ns - ran_ns
        follows = np.diff(steps["step"][order], prepend=steps["step"][order][0]) == 1
        inside = (ends_ns >= span.start_ns) & (ends_ns < span.end_ns)
        prompts_ns = _of_prompts(
            ran_ns,
            steps["prefill_tokens"][order],
            steps["decode_tokens"][order],
            inside,
        )
        parts = (
            prompts_ns,
            np.where(follows, gaps_ns, 0),
            np.where(follows, 0, gaps_ns),
        )
        return cls(ends_ns, np.cumsum(parts, axis=1))

    def between(self, first_ns: Ints, last_ns: Ints) -> Ints:
        """The sums between the steps that ended then."""
        places = (np.searchsorted(self.ends_ns, each) for each in (first_ns, last_ns))
        begun, ended = (
            self.upto_ns[:, np.minimum(each, len(self.ends_ns) - 1)] for each in places
        )
        return np.asarray(ended - begun)


def _of_prompts(
    ran_ns: Ints,
    prompt_tokens: Ints,
    decode_tokens: Ints,
    inside: npt.NDArray[np.bool_],
) -> Ints:
    """What prompt tokens added to each step: its time beyond that of a usual one.

    Without any step that only decodes it is their share of the step's tokens.
    """
    alone = ran_ns[inside & (prompt_tokens <= 0) & (decode_tokens > 0)]
    has_prompt = prompt_tokens > 0
    if len(alone):
        usual_ns = int(np.median(alone))
        added = np.where(decode_tokens > 0, np.maximum(ran_ns - usual_ns, 0), ran_ns)
    else:
        tokens = np.maximum(prompt_tokens + np.maximum(decode_tokens, 0), 1)
        added = (ran_ns * (prompt_tokens / tokens)).astype(np.int64)
    return np.where(has_prompt, added, 0)


def _binned_s(spent_ns: Ints, place: Ints) -> Floats:
    inside = place >= 0
    sums = np.bincount(place[inside], spent_ns[inside], minlength=BINS)
    return np.asarray(sums / NS_PER_S, np.float64)
