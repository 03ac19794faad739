"""Checks the error rates of comparisons on simulated sessions whose truth is known.

    python benchmarks/compare_honesty.py [SIMULATIONS] [--quick] [CELL ...]

Requests arrive as a Poisson process, or in bursts that lengthen waits. Latencies are
lognormal and change slowly (a first-order autoregression that all of them share, plus
one of each latency's own). ``memory`` is the integrated autocorrelation time in
requests. For paired sessions, as much of the variation comes from the traffic as on
vLLM's CPU build, where pairing of 930 requests reduced the half-width of the interval
of decode time from 8.0% to 4.5%, of E2EL from 7.7% to 4.6%, and of TTFT hardly at all.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.breakdown.view import BreakdownPhase
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.record.tables.session_state import SessionState
from inferwatch.studies.compare.comparison import ComparisonRules, SessionPair, compare
from inferwatch.studies.compare.metrics import COST, GOOD_COST, KEYS, PHASE_KEYS
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    LoadFacts,
    Pairing,
    RatioSums,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.statistics.resampling import BINS, counted
from inferwatch.studies.compare.verdicts import MetricVerdict

Floats = npt.NDArray[np.float64]

MEDIANS_S = {"ttft_s": 0.2, "tpot_s": 0.02, "itl_s": 0.018, "e2el_s": 2.0}
MEDIANS_S |= {"queue_s": 0.05, "steps.duration_s": 0.015}
SPREAD = 0.5
STEADIER = 0.9
"""Spread of the latencies of running requests, relative to SPREAD."""
WAITS = ("ttft_s", "queue_s")
SHARED = 0.7
"""Correlation between the latencies of a session."""
SENT = 0.7
SENT_WAITS = 0.2
"""Share of the variance of waits that comes from the traffic."""
BURST = 8
"""Mean number of requests that arrive together."""
PER_S = 20.0
DRAWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What sessions are compared: their traffic, drift and number of runs."""

    drift: float = 0.0
    """Spread between runs of one setting."""
    bursty: bool = False
    runs: tuple[int, int] = (3, 3)
    """Number of runs of each side, if sides are repeated."""


STEADY = World()


class Traffic:
    """The arrivals of requests, and how lengths and bursts change their latencies."""

    def __init__(
        self,
        random: np.random.Generator,
        requests: int,
        memory: float,
        *,
        bursty: bool = False,
    ) -> None:
        self.keep = (memory - 1) / (memory + 1)
        gaps_s = random.exponential(1 / PER_S, requests)
        self.moved = moved(random, requests, self.keep)
        if bursty:
            first = random.random(requests) < 1 / BURST
            first[0] = True
            gaps_s *= np.where(first, 0.9 * BURST, 0.1)
            place = np.arange(requests)
            waits = np.log1p(place - np.maximum.accumulate(np.where(first, place, 0)))
            for name in WAITS:
                self.moved[name] = self.moved[name] + waits
        self.at_s = np.cumsum(gaps_s)


def moved(random: np.random.Generator, requests: int, keep: float) -> dict[str, Floats]:
    """Return each request's deviation from the median of each latency; variance 1."""
    shared, *own_series = autoregression(random, (len(MEDIANS_S) + 2, requests), keep)
    deviations = {
        name: np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own
        for name, own in zip(MEDIANS_S, own_series, strict=False)
    }
    return deviations | {"tokens": own_series[-1]}


class Simulated:
    """The requests of one stationary session: arrivals and latencies."""

    def __init__(
        self,
        random: np.random.Generator,
        requests: int,
        memory: float,
        traffic: Traffic | None = None,
        drift: float = 0.0,
    ) -> None:
        """Simulate a session with the given traffic, else with traffic of its own.

        ``drift`` is the spread of a factor that all latencies of the run share.
        """
        sent = traffic or Traffic(random, requests, memory)
        own = moved(random, requests, sent.keep)
        off = drift * float(random.standard_normal())
        self.at_s = sent.at_s
        self.values_s, far = {}, {}
        for name, each in own.items():
            share = SENT_WAITS if name in WAITS else SENT
            far[name] = np.sqrt(share) * sent.moved[name] + np.sqrt(1 - share) * each
        for name, median in MEDIANS_S.items():
            spread = SPREAD if name in WAITS else STEADIER * SPREAD
            self.values_s[name] = median * np.exp(spread * far[name] + off)
        self.tokens = 100 * np.exp(0.3 * far["tokens"])
        self._far = far

    def numbers(
        self,
        number: int = 1,
        *,
        part: tuple[float, float] = (0.0, 1.0),
        times: Mapping[str, float] | None = None,
        pairing: Pairing | None = None,
    ) -> SessionNumbers:
        """Return a part of the session for a comparison.

        ``times`` makes latencies longer.
        """
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
            sums={
                "output_tokens_per_s": self._tokens(place, inside, end_s - start_s),
                **self._phases(place, inside, longer),
                **self._ratios(place, inside, end_s - start_s),
            },
            pairing=pairing,
        )

    def _phases(
        self,
        place: npt.NDArray[np.int64],
        inside: npt.NDArray[np.bool_],
        longer: Mapping[str, float],
    ) -> dict[str, RatioSums]:
        """Mean time of requests by phase; three never vary, preemptions are rare."""
        of_s = {name: each[inside] for name, each in self.values_s.items()}
        tpot_s = 100 * of_s["tpot_s"] * longer.get("tpot_s", 1.0)
        once = np.ones(len(place))
        far = {name: each[inside] for name, each in self._far.items()}
        rare_s = np.maximum(far["queue_s"] - 2.3, 0.0)
        spent_s = {
            BreakdownPhase.TOKENISE: 0.01 * of_s["ttft_s"],
            BreakdownPhase.API: 0.01 * of_s["itl_s"],
            BreakdownPhase.MEDIA: 0.0 * once,
            BreakdownPhase.QUEUE: of_s["queue_s"] * longer.get("queue_s", 1.0),
            BreakdownPhase.PREFILL: 0.5 * of_s["ttft_s"] * longer.get("ttft_s", 1.0),
            BreakdownPhase.PREEMPTED: rare_s,
            BreakdownPhase.DECODE: 0.9 * tpot_s,
            BreakdownPhase.PROMPTS: 0.1 * tpot_s * of_s["itl_s"] / MEDIANS_S["itl_s"],
            BreakdownPhase.STALLS: 0.3 * of_s["steps.duration_s"],
            BreakdownPhase.SEND: 0.001 * once,
            BreakdownPhase.UNKNOWN: 0.0 * once,
        }
        return {
            PHASE_KEYS[phase]: _ratio(place, each, once)
            for phase, each in spent_s.items()
        }

    def _ratios(
        self, place: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_], span_s: float
    ) -> dict[str, RatioSums]:
        """Cost, hits, preemptions (rare, and together), MBU and MFU."""
        tokens, steps_s = self.tokens[inside], self.values_s["steps.duration_s"][inside]
        far = {name: each[inside] for name, each in self._far.items()}
        once = np.ones(len(place))
        paid = RatioSums(
            above=np.full(BINS, span_s / BINS),
            below=np.bincount(place, tokens, minlength=BINS).astype(float),
            n=len(place),
        )
        good = far["e2el_s"] < 1.5
        return {
            COST: paid,
            GOOD_COST: replace(
                paid,
                below=np.bincount(place, tokens * good, minlength=BINS).astype(float),
            ),
            "prefix_hit_rate": _ratio(
                place, tokens / (1 + np.exp(-far["ttft_s"])), tokens
            ),
            "preemptions_per_request": _ratio(
                place, (far["queue_s"] > 2.3).astype(float), once
            ),
            "mbu": _ratio(place, np.exp(0.2 * far["tokens"]) * 0.005, steps_s),
            "mfu": _ratio(place, tokens * 1e-5, steps_s),
        }

    def _tokens(
        self, place: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_], span_s: float
    ) -> RatioSums:
        return RatioSums(
            above=np.bincount(place, self.tokens[inside], minlength=BINS).astype(float),
            below=np.full(BINS, span_s / BINS),
            n=len(place),
        )


def _ratio(place: npt.NDArray[np.int64], above: Floats, below: Floats) -> RatioSums:
    sums = (
        np.bincount(place, each, minlength=BINS).astype(float)
        for each in (above, below)
    )
    return RatioSums(above=next(sums), below=next(sums), n=len(place))


def autoregression(
    random: np.random.Generator, shape: tuple[int, int], keep: float
) -> Floats:
    """Return first-order autoregressive series, each stationary with variance 1."""
    series, n = shape
    kernel = keep ** np.arange(min(n, int(20 / (1 - keep)) + 1))
    steps = random.standard_normal((series, n + len(kernel))) * np.sqrt(1 - keep**2)
    size = n + 2 * len(kernel)
    moved = np.fft.irfft(np.fft.rfft(steps, size) * np.fft.rfft(kernel, size), size)
    return np.asarray(moved[:, len(kernel) : len(kernel) + n], np.float64)


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


def judged(sides: Sequence[ComparedSide], seed: int, draws: int) -> SessionPair:
    """Compare with the default rules, but fewer draws."""
    rules = ComparisonRules(seed=seed, draws=draws, places=False)
    return compare(sides, rules).pairs[0]


def two(
    seed: int,
    requests: int,
    memory: float,
    times: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    world: World = STEADY,
) -> SessionPair:
    """Two sessions of the same engine, the second with longer latencies."""
    random = np.random.default_rng([7, seed])
    sessions = (
        Simulated(
            random,
            requests,
            memory,
            Traffic(random, requests, memory, bursty=world.bursty),
            world.drift,
        )
        for _ in range(2)
    )
    a, b = sessions
    sides = [ComparedSide.of(a.numbers(1)), ComparedSide.of(b.numbers(2, times=times))]
    return judged(sides, seed, draws)


def paired(
    seed: int,
    requests: int,
    memory: float,
    times: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    world: World = STEADY,
) -> SessionPair:
    """Two sessions that were sent the same requests."""
    random = np.random.default_rng([9, seed])
    traffic = Traffic(random, requests, memory, bursty=world.bursty)
    same = Pairing(requests=requests, of=requests)
    a, b = (Simulated(random, requests, memory, traffic, world.drift) for _ in range(2))
    sides = [
        ComparedSide.of(a.numbers(1, pairing=same)),
        ComparedSide.of(b.numbers(2, times=times, pairing=same)),
    ]
    return judged(sides, seed, draws)


def repeated(
    seed: int,
    requests: int,
    memory: float,
    times: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    world: World = STEADY,
) -> SessionPair:
    """Several runs per side, all sent the same requests."""
    random = np.random.default_rng([6, seed])
    traffic = Traffic(random, requests, memory)
    same = Pairing(requests=requests, of=requests)

    def side(count: int, longer: Mapping[str, float] | None) -> ComparedSide:
        made = (
            Simulated(random, requests, memory, traffic, world.drift)
            for _ in range(count)
        )
        numbers = (each.numbers(times=longer, pairing=same) for each in made)
        return ComparedSide(runs=tuple(numbers))

    return judged([side(world.runs[0], None), side(world.runs[1], times)], seed, draws)


def halves(seed: int, requests: int, memory: float, draws: int = DRAWS) -> SessionPair:
    """The two halves of one session."""
    whole = Simulated(np.random.default_rng([8, seed]), requests, memory)
    parts = (0.0, 0.5), (0.5, 1.0)
    sides = [
        ComparedSide.of(whole.numbers(n, part=part))
        for n, part in enumerate(parts, start=1)
    ]
    return judged(sides, seed, draws)


def covers(pair: SessionPair, ratio: float = 1.0) -> dict[str, bool]:
    """Whether the interval of each metric covers the true ratio."""
    return {
        each.metric.key: each.ratio_span[0] <= ratio <= each.ratio_span[1]
        for each in pair.results
        if each.ratio_span is not None
    }


def alarms(pair: SessionPair) -> int:
    """Number of metrics with a definite verdict."""
    definite = (MetricVerdict.BETTER, MetricVerdict.WORSE, MetricVerdict.DIFFERS)
    return sum(len(pair.of(verdict)) for verdict in definite)


def all_have(
    pair: SessionPair, verdict: MetricVerdict, metrics: Iterable[str] = tuple(KEYS)
) -> bool:
    """Whether all of these metrics have this verdict."""
    wanted = set(metrics)
    results = [each for each in pair.results if each.metric.key in wanted]
    return all(each.verdict is verdict for each in results)


TTFT = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_mean_s")
OUTRIGHT = frozenset((MetricVerdict.BETTER, MetricVerdict.WORSE, MetricVerdict.DIFFERS))
PROBABLY = frozenset(
    (
        MetricVerdict.PROBABLY_BETTER,
        MetricVerdict.PROBABLY_WORSE,
        MetricVerdict.PROBABLY_DIFFERS,
    )
)
Make = Callable[[int], SessionPair]
DRIFT = 0.03
"""Spread between runs of one setting; on vLLM's CPU build two runs differed by 5%."""


class Truths:
    """Counts the verdicts on pairs without any difference."""

    def __init__(self) -> None:
        self._covered: dict[str, list[bool]] = defaultdict(list)
        self._verdicts: dict[MetricVerdict, int] = defaultdict(int)
        self._alarms: list[bool] = []

    def add(self, pair: SessionPair) -> None:
        self._alarms.append(alarms(pair) > 0)
        for key, hit in covers(pair).items():
            self._covered[KEYS[key].statistic or "rate"].append(hit)
        for each in pair.results:
            self._verdicts[each.verdict] += 1

    def __str__(self) -> str:
        """Return the coverage by statistic, and the share of false alarms."""
        covered = ", ".join(
            f"{name} {np.mean(hits):.1%}" for name, hits in self._covered.items()
        )
        rows = sum(self._verdicts.values())
        probably = sum(self._verdicts[each] for each in PROBABLY) / rows
        return (
            f"covered {covered}; a false alarm anywhere {np.mean(self._alarms):.1%}; "
            f"rows probably {probably:.1%}, cannot tell "
            f"{self._verdicts[MetricVerdict.OPEN] / rows:.1%}"
        )


class Power:
    """Counts how often a true difference is found."""

    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self._verdicts: dict[str, list[MetricVerdict]] = defaultdict(list)
        self._any: list[bool] = []

    def add(self, pair: SessionPair) -> None:
        verdicts = {each.metric.key: each.verdict for each in pair.results}
        for key in self._keys:
            self._verdicts[key].append(verdicts.get(key, MetricVerdict.OPEN))
        self._any.append(any(verdicts.get(key) in OUTRIGHT for key in self._keys))

    def __str__(self) -> str:
        """Return the shares of definite and of probable verdicts by metric."""
        texts = []
        for key, verdicts in self._verdicts.items():
            outright = np.mean([each in OUTRIGHT for each in verdicts])
            probably = np.mean([each in PROBABLY for each in verdicts])
            texts.append(f"{key} {outright:.1%} (and probably {probably:.1%})")
        return f"found {', '.join(texts)}; any of them {np.mean(self._any):.1%}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of session pairs, simulated many times."""

    name: str
    make: Make
    found: Truths | Power = field(default_factory=Truths)

    def run(self, simulations: int) -> None:
        """Simulate the pairs, and print the verdicts on them."""
        began_s = time.monotonic()
        for seed in range(simulations):
            self.found.add(self.make(seed))
            if (seed + 1) % 200 == 0 and seed + 1 < simulations:
                print(f"  {seed + 1}: {self.name}: {self.found}", flush=True)
        each_ms = (time.monotonic() - began_s) / simulations * 1e3
        print(
            f"{self.name}: {self.found}  ({simulations} simulations, {each_ms:.0f} ms)",
            flush=True,
        )


def cells() -> list[Cell]:
    return [*_truths(), *_powers()]


def _truths() -> list[Cell]:
    cells_of = []
    sizes = (2_000, 1), (1_000, 3), (2_000, 9), (4_000, 39), (10_000, 199)
    for requests, memory in sizes:
        for kind in (two, paired):
            name = f"{kind.__name__} {requests} memory {memory}"
            make = partial(kind, requests=requests, memory=memory)
            cells_of.append(Cell(name, make))
    for kind in (two, paired):
        make = partial(kind, requests=2_000, memory=9, world=World(bursty=True))
        cells_of.append(Cell(f"{kind.__name__} 2000 memory 9 bursty", make))
    cells_of.append(Cell("two 60 memory 3", partial(two, requests=60, memory=3)))
    single = partial(paired, requests=1_000, memory=3, world=World(drift=DRIFT))
    cells_of.append(Cell("one run a side, drift", single))
    runs = partial(repeated, requests=1_000, memory=3)
    for world, name in (
        (World(), "three runs a side"),
        (World(drift=DRIFT), "three runs a side, drift"),
        (World(drift=DRIFT, runs=(5, 5)), "five runs a side, drift"),
        (World(drift=DRIFT, runs=(1, 3)), "one run and three, drift"),
    ):
        cells_of.append(Cell(name, partial(runs, world=world)))
    return cells_of


def _powers() -> list[Cell]:
    tpot = "tpot_p50_s", "tpot_mean_s", "tpot_p99_s"
    times = {"tpot_s": 1.10, "itl_s": 1.10}
    cells_of = []
    for kind in (two, paired):
        slower = partial(kind, requests=1_000, memory=3, times=times)
        tail = partial(kind, requests=5_000, memory=3, times={"ttft_s": 1.20})
        name = kind.__name__
        cells_of += [
            Cell(f"{name}: TPOT +10%", slower, Power(*tpot)),
            Cell(f"{name}: TTFT +20%", tail, Power("ttft_p99_s")),
        ]
    for runs, name in (((3, 3), "three"), ((5, 5), "five")):
        world = World(drift=DRIFT, runs=runs)
        slower = partial(repeated, requests=1_000, memory=3, times=times, world=world)
        cells_of.append(Cell(f"{name} runs, drift: TPOT +10%", slower, Power(*tpot)))
    return cells_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulations", nargs="?", type=int, default=1_000)
    parser.add_argument("cells", nargs="*", help="parts of names; all when none")
    parser.add_argument("--quick", action="store_true", help="20 of each")
    options = parser.parse_args()
    simulations = 20 if options.quick else options.simulations
    for each in cells():
        if not options.cells or any(part in each.name for part in options.cells):
            each.run(simulations)


if __name__ == "__main__":
    main()
