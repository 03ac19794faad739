"""Does a comparison keep what it promises? Simulated sessions whose truth is known.

    python benchmarks/compare_honesty.py [SIMULATIONS]

Requests arrive as a Poisson process; what they wait for moves slowly (a first-order
autoregression that all latencies share, besides one of their own), and latencies are
lognormal. ``memory`` is the integrated autocorrelation time in requests.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from collectors.clock import NS_PER_S
from inferwatch.compare.comparison import ComparisonRules, SessionPair, compare
from inferwatch.compare.metrics import KEYS
from inferwatch.compare.resampling import BINS, counted
from inferwatch.compare.session_numbers import (
    LoadFacts,
    Pairing,
    RatioSums,
    SessionNumbers,
    Side,
)
from inferwatch.compare.span import ComparedSpan, WarmupCut
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.storage.sessions.session_state import SessionState
from inferwatch.storage.sessions.sessions import SessionRow

Floats = npt.NDArray[np.float64]

MEDIANS_S = {"ttft_s": 0.2, "tpot_s": 0.02, "itl_s": 0.018, "e2el_s": 2.0}
MEDIANS_S |= {"queue_s": 0.05, "steps.duration_s": 0.015}
SPREAD = 0.5
"""Of the logarithms."""
SHARED = 0.7
"""How far the latencies of a session move together."""
SENT = 0.7
"""Of how a latency varies, what comes of the traffic: on vLLM's CPU two thirds."""
PER_S = 20.0
DRAWS = 2_000
SHIFT = 1.10


class Traffic:
    """What is sent: when, and what comes of it on any machine (lengths, bursts)."""

    def __init__(
        self, random: np.random.Generator, requests: int, memory: float
    ) -> None:
        self.keep = (memory - 1) / (memory + 1)
        self.at_s = np.cumsum(random.exponential(1 / PER_S, requests))
        self.moved = moved(random, requests, self.keep)


def moved(random: np.random.Generator, requests: int, keep: float) -> dict[str, Floats]:
    """How far from its median each latency of each request is, of variance 1."""
    shared = autoregression(random, requests, keep)
    found = {
        name: np.sqrt(SHARED) * shared
        + np.sqrt(1 - SHARED) * autoregression(random, requests, keep)
        for name in MEDIANS_S
    }
    return found | {"tokens": autoregression(random, requests, keep)}


class Simulated:
    """Requests of one stationary session: when they came, and their latencies."""

    def __init__(
        self,
        random: np.random.Generator,
        requests: int,
        memory: float,
        traffic: Traffic | None = None,
        drift: float = 0.0,
    ) -> None:
        """Of the same traffic as another, or of its own.

        The run as a whole is off by a lognormal of this spread.
        """
        sent = traffic or Traffic(random, requests, memory)
        own = moved(random, requests, sent.keep)
        off = drift * float(random.standard_normal())
        far = {
            name: np.sqrt(SENT) * sent.moved[name] + np.sqrt(1 - SENT) * own[name]
            for name in own
        }
        self.at_s = sent.at_s
        self.values_s = {
            name: median * np.exp(SPREAD * far[name] + off)
            for name, median in MEDIANS_S.items()
        }
        self.tokens = 100 * np.exp(0.3 * far["tokens"])

    def numbers(
        self,
        number: int = 1,
        *,
        part: tuple[float, float] = (0.0, 1.0),
        times: Mapping[str, float] | None = None,
        pairing: Pairing | None = None,
    ) -> SessionNumbers:
        """What a comparison is made of, of a part of it, latencies made longer."""
        whole_s = float(self.at_s[-1]) + 1e-6
        start_s, end_s = (share * whole_s for share in part)
        inside = (self.at_s >= start_s) & (self.at_s < end_s)
        place = ((self.at_s[inside] - start_s) / (end_s - start_s) * BINS).astype(int)
        longer = times or {}
        return SessionNumbers(
            row=_row(number),
            span=_span(end_s - start_s),
            load=_load(int(inside.sum()), end_s - start_s),
            configuration={},
            counted={
                name: counted(
                    place,
                    np.rint(values_s[inside] * longer.get(name, 1.0) * NS_PER_S).astype(
                        np.int64
                    ),
                )
                for name, values_s in self.values_s.items()
            },
            sums={"output_tokens_per_s": self._tokens(place, inside, end_s - start_s)},
            pairing=pairing,
        )

    def _tokens(
        self, place: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_], span_s: float
    ) -> RatioSums:
        return RatioSums(
            above=np.bincount(place, self.tokens[inside], minlength=BINS).astype(float),
            below=np.full(BINS, span_s / BINS),
            n=len(place),
        )


def autoregression(random: np.random.Generator, n: int, keep: float) -> Floats:
    """First order, stationary, of variance 1."""
    kernel = keep ** np.arange(min(n, int(40 / (1 - keep)) + 1))
    steps = random.standard_normal(n + len(kernel)) * np.sqrt(1 - keep**2)
    size = len(steps) + len(kernel)
    moved = np.fft.irfft(np.fft.rfft(steps, size) * np.fft.rfft(kernel, size), size)
    return np.asarray(moved[len(kernel) : len(kernel) + n], np.float64)


def _row(number: int) -> SessionRow:
    return SessionRow(
        session=number,
        id=f"s{number}",
        name=f"session-{number}",
        command="load",
        model="simulated",
        state=SessionState.COMPLETE,
        reason=None,
        started_ns=0,
        ended_ns=None,
        duration_ns=0,
        readings=0,
        steps=0,
        requests=0,
        unrecorded=0,
        inferwatch_version="0",
        tags="",
        deleted_ns=None,
        imported_from=None,
    )


def _span(length_s: float) -> ComparedSpan:
    end_ns = round(length_s * NS_PER_S)
    return ComparedSpan(
        origin_ns=0, start_ns=0, end_ns=end_ns, cut=WarmupCut.NONE, load_runs=1
    )


def _load(requests: int, length_s: float) -> LoadFacts:
    return LoadFacts(
        requests=requests,
        per_s=requests / length_s,
        prompt_tokens=100.0,
        output_tokens=100.0,
        burstiness=1.0,
        failed=0,
    )


def two(
    seed: int,
    requests: int,
    memory: float,
    times: Mapping[str, float] | None = None,
    draws: int = DRAWS,
) -> SessionPair:
    """Two sessions of the same engine, the second with longer latencies."""
    random = np.random.default_rng([7, seed])
    a = Simulated(random, requests, memory).numbers(1)
    b = Simulated(random, requests, memory).numbers(2, times=times)
    return compare(
        [Side.of(a), Side.of(b)], ComparisonRules(seed=seed, draws=draws)
    ).pairs[0]


def paired(
    seed: int,
    requests: int,
    memory: float,
    times: Mapping[str, float] | None = None,
    draws: int = DRAWS,
) -> SessionPair:
    """Two sessions that were sent the same."""
    random = np.random.default_rng([9, seed])
    traffic = Traffic(random, requests, memory)
    same = Pairing(requests=requests, of=requests)
    a = Simulated(random, requests, memory, traffic).numbers(1, pairing=same)
    b = Simulated(random, requests, memory, traffic)
    rules = ComparisonRules(seed=seed, draws=draws)
    other = b.numbers(2, times=times, pairing=same)
    return compare([Side.of(a), Side.of(other)], rules).pairs[0]


def halves(seed: int, requests: int, memory: float, draws: int = DRAWS) -> SessionPair:
    """The two halves of one session."""
    whole = Simulated(np.random.default_rng([8, seed]), requests, memory)
    parts = (0.0, 0.5), (0.5, 1.0)
    a, b = (whole.numbers(n, part=part) for n, part in enumerate(parts, 1))
    return compare(
        [Side.of(a), Side.of(b)], ComparisonRules(seed=seed, draws=draws)
    ).pairs[0]


def covers(pair: SessionPair, ratio: float = 1.0) -> dict[str, bool]:
    """Whether the interval of each metric covers the true ratio."""
    return {
        each.metric.key: each.ratio_span[0] <= ratio <= each.ratio_span[1]
        for each in pair.results
        if each.ratio_span is not None
    }


def alarms(pair: SessionPair) -> int:
    """Metrics that are called better or worse."""
    shown = (MetricVerdict.BETTER, MetricVerdict.WORSE, MetricVerdict.DIFFERS)
    return sum(len(pair.of(verdict)) for verdict in shown)


def shown(
    pair: SessionPair, verdict: MetricVerdict, metrics: Iterable[str] = tuple(KEYS)
) -> bool:
    """That is said of all of these metrics."""
    wanted = set(metrics)
    found = [each for each in pair.results if each.metric.key in wanted]
    return all(each.verdict is verdict for each in found)


TTFT = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_mean_s")


def main(simulations: int) -> None:
    """Print a line for each promise."""
    with ProcessPoolExecutor() as pool:
        print(f"{simulations} simulations each, {DRAWS} draws; memory in requests")
        cases = ((2_000, 1), (2_000, 9), (4_000, 39), (10_000, 199), (20_000, 19))
        for requests, memory in cases:
            began_s = time.monotonic()
            make = partial(two, requests=requests, memory=memory)
            pairs = list(pool.map(partial(_covered, make), range(simulations)))
            covered, false = zip(*pairs, strict=True)
            print(
                f"A/A, {requests} requests, memory {memory}: covered "
                f"{_coverage(covered)}; a false alarm anywhere in "
                f"{np.mean(np.array(false) > 0):.1%}"
                f"  ({time.monotonic() - began_s:.0f} s)",
                flush=True,
            )
        fewer = max(simulations // 10, 1)
        _say_share(pool, fewer, "halves: no difference in any metric", _same)
        _say_share(pool, fewer, "10% shift of TTFT: all four found", _found)
        _say_share(pool, simulations, "60 requests: cannot tell in any", _open)


def _covered(
    make: Callable[[int], SessionPair], seed: int
) -> tuple[dict[str, bool], int]:
    pair = make(seed)
    return covers(pair), alarms(pair)


def _coverage(covered: Iterable[Mapping[str, bool]]) -> str:
    known = list(covered)
    said = []
    for key in TTFT:
        found = [each[key] for each in known if key in each]
        if found:
            said.append(f"{key.split('_')[1]} {np.mean(found):.1%}")
    return ", ".join(said)


def _same(seed: int) -> bool:
    return shown(halves(seed, requests=80_000, memory=9), MetricVerdict.SAME)


def _found(seed: int) -> bool:
    pair = two(seed, requests=100_000, memory=9, times={"ttft_s": SHIFT})
    return shown(pair, MetricVerdict.WORSE, TTFT)


def _open(seed: int) -> bool:
    return shown(two(seed, requests=60, memory=3), MetricVerdict.OPEN)


def _say_share(
    pool: ProcessPoolExecutor,
    simulations: int,
    what: str,
    holds: Callable[[int], bool],
) -> None:
    share = np.mean(list(pool.map(holds, range(simulations))))
    print(f"{what}: {share:.1%}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
