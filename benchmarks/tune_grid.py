"""Checks whether a tune finds what an exhaustive grid finds, in a third of its time.

Runs on real vLLM (the demo's engine, CPU) and varies max-num-seqs. First a few loads
choose objectives that a value in the middle meets best: below it requests wait too
long, above it tokens come too slowly. Then comes the tune, then the grid: each value
with an engine start of its own, measured as often as the tune measured its best. The
repeats are all in one engine, or with ``--interleaved`` in rounds with a start for
each, which allows for a machine that drifts. Tune and grid send the same requests at
the same times. They agree if the grid's best is the tune's best or not told apart from
it. Needs an idle machine.

    benchmarks/tune_grid.py                     one round
    benchmarks/tune_grid.py --values 2,4,8,16,32
    benchmarks/tune_grid.py --pairs 6           live cap 8 against a start with it
"""

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec

from inferwatch.loadgen.plan.lengths import Range, fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.record.sessions.housekeeping import retag
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.running.engines import EngineNews, OwnEngines
from inferwatch.studies.tune.running.run import TuneRun
from inferwatch.studies.tune.running.trial_load import TrialTask, measured
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import TrialNumbers

FLAG = "max-num-seqs"
PRESENT = "32"
"""The value of the demo's engine."""
MIDDLE = 8
USERS = 24
DRAIN_S = 0.2
"""Requests still in flight then miss their objective anyway."""
LOOK_S = 5.0
AT_MOST = 1 / 3
TUNE, GRID, LOOK = "tuned", "grid", "look"
CAP = "8"
PAIR_LOAD_S = 5.0


def point(value: object) -> Point:
    """Return the setting with this max-num-seqs."""
    return Point(flags=((FLAG, str(value)),))


def plan_of(tune_id: str, values: Sequence[str], load: LoadPlan) -> TunePlan:
    """Return a tune of the demo's engine."""
    return TunePlan(
        tune_id=tune_id,
        model="demo",
        vary=((FLAG, tuple(values)),),
        present=((FLAG, PRESENT),),
        load=load,
        repeats=5,
    )


@dataclass
class Bench:
    """Measures settings outside of a tune."""

    database: Path
    plan: TunePlan
    engines: OwnEngines = field(init=False)
    n: int = 0

    def __post_init__(self) -> None:
        news = EngineNews(stage=lambda _: None, say=print)
        self.engines = OwnEngines(self.plan, news)

    async def measure(self, value: object, start: object) -> tuple[str, TrialNumbers]:
        """Measure a value on an engine started with ``start``.

        Returns session and numbers.
        """
        at = await self.engines.reach(point(value), point(start))
        self.n += 1
        name = f"{self.plan.tune_id} {self.n} {value}"
        task = TrialTask(name=name, salt=name, plan=self.plan, at=at)
        session = await measured(task, self.database, asyncio.Event())
        return session, numbers_of(self.database, session, self.plan)


# The objectives.


async def objectives(database: Path, load: LoadPlan) -> str:
    """Return limits half-way between the latencies of neighbouring values."""
    load = msgspec.structs.replace(load, warmup_s=1.0, duration_s=LOOK_S)
    bench = Bench(database, plan_of(LOOK, (), load))
    numbers = {}
    for value in (2 * MIDDLE, MIDDLE, MIDDLE // 2):
        _, numbers[value] = await bench.measure(value, PRESENT)
    await bench.engines.close()
    tpot = {value: p50(each, "tpot_s") for value, each in numbers.items()}
    ttft = {value: p50(each, "ttft_s") for value, each in numbers.items()}
    for value in numbers:
        print(
            f"  {value:>3} at once: TTFT {ttft[value] * 1e3:6.0f} ms, "
            f"TPOT {tpot[value] * 1e3:5.1f} ms"
        )
    tpot_s = math.sqrt(tpot[MIDDLE] * tpot[2 * MIDDLE])
    ttft_s = math.sqrt(ttft[MIDDLE] * ttft[MIDDLE // 2])
    return f"ttft_s<{ttft_s:.3f} tpot_s<{tpot_s:.5f}"


def p50(numbers: TrialNumbers, name: str) -> float:
    """Return the median of a latency; exit if no request was answered."""
    value = numbers.latencies[name].quantiles.p50
    if value is None:
        raise SystemExit(f"nothing was answered, so there is no {name}")
    return value


# The grid, and the tune.


async def grid(
    database: Path, plan: TunePlan, rounds: Sequence[tuple[str, int]]
) -> dict[str, list[float]]:
    """Return the goodput of each trial, on engines started with the measured value."""
    bench = Bench(database, plan)
    scores: dict[str, list[float]] = {}
    for value, trials in rounds:
        for _ in range(trials):
            _, numbers = await bench.measure(value, value)
            scores.setdefault(value, []).append(numbers.goodput_per_s or 0.0)
        await bench.engines.renew()
    return scores


def rounds_of(
    values: Sequence[str], repeats: int, *, interleaved: bool
) -> list[tuple[str, int]]:
    """Return values in random order: all repeats of each at once, or in rounds."""
    if not interleaved:
        return [(value, repeats) for value in random.sample(values, len(values))]
    drawn = (random.sample(values, len(values)) for _ in range(repeats))
    return [(value, 1) for each in drawn for value in each]


async def one_round(database: Path, arguments: argparse.Namespace) -> bool:
    """Run the tune and the grid; returns whether the tune keeps its promise."""
    values = arguments.values.split(",")
    load = LoadPlan(
        run_id="",
        model="",
        arrivals=Arrivals.CLOSED,
        concurrency=USERS,
        prompt_tokens=fixed(128),
        output_tokens=fixed(48),
        warmup_s=arguments.warmup,
        duration_s=arguments.trial,
        drain_s=DRAIN_S,
        seed=arguments.seed,
    )
    slo = await objectives(database, load)
    print(f"  objectives: {slo}")
    load = msgspec.structs.replace(load, slo=slo)

    began_s = time.monotonic()
    run = TuneRun(plan_of(TUNE, values, load), database)
    result = await run.run(asyncio.Event())
    tune_s = time.monotonic() - began_s
    if result.best is None:
        raise SystemExit(f"the tune measured nothing: {run.progress.said}")
    best = result.best.point.flags[0][1]
    alike = {e.point.flags[0][1] for e in result.points if e.like_best} | {best}

    began_s = time.monotonic()
    plan = plan_of(GRID, values, load)
    repeats = sum(
        each.point == result.best.point and each.numbers is not None
        for each in run.progress.trials
    )
    rounds = rounds_of(values, repeats, interleaved=arguments.interleaved)
    scores = await grid(database, plan, rounds)
    grid_s = time.monotonic() - began_s
    truth = max(scores, key=lambda value: fmean(scores[value]))

    tuned = {each.point.flags[0][1]: each for each in result.points}
    print(f"  {FLAG:<14}{'tune: good/s':>14}{'trials':>8}   grid: good/s")
    for value in sorted(values, key=int):
        each = tuned.get(value)
        score = "–" if each is None or each.score is None else f"{each.score:.2f}"
        text = str(each.outcome) if each and each.score is None else ""
        if each is not None and each.ttft_p99_s and each.tpot_p99_s:
            text += f"TTFT p99 {each.ttft_p99_s:.2f} s, "
            text += f"TPOT p99 {each.tpot_p99_s * 1e3:.1f} ms in the tune"
        trials = 0 if each is None else each.trials
        listed = " ".join(f"{one:.2f}" for one in scores[value])
        print(f"  {value:<14}{score:>14}{trials:>8}   {listed}  {text}")
    ratio = tune_s / grid_s
    same = truth in alike
    print(f"  the tune says: {best}: {result.verdict}")
    print(
        f"  grid's best {truth}, tune's {best} (not told apart: "
        f"{', '.join(sorted(alike - {best}, key=int)) or 'none'}): "
        f"{'same' if same else 'NOT THE SAME'}"
    )
    trials = len(run.progress.trials)
    print(
        f"  tune {tune_s:.0f} s ({trials} trials), grid {grid_s:.0f} s "
        f"({sum(map(len, scores.values()))} trials): ratio {ratio:.2f}, "
        f"{'ok' if ratio <= AT_MOST else 'MORE THAN A THIRD'}"
    )
    return same and ratio <= AT_MOST


# A cap set live, compared with one set by a restart.


async def pairs(database: Path, arguments: argparse.Namespace) -> None:
    """Measure the cap set live and by a restart, each on its own engine, in turns."""
    load = LoadPlan(
        run_id="",
        model="",
        rate_per_s=arguments.rate,
        prompt_tokens=Range(32, 128),
        output_tokens=fixed(48),
        warmup_s=1.0,
        duration_s=PAIR_LOAD_S,
        seed=arguments.seed,
    )
    bench = Bench(database, plan_of("cap", (), load))
    for number in range(arguments.pairs):
        for tag in random.sample(("live", "restarted"), 2):
            start = PRESENT if tag == "live" else CAP
            session, numbers = await bench.measure(CAP, start)
            row = find(database, session)
            retag(database, row.session, partial(_tagged, tag))
            bound = numbers.bound_share.get("seqs", 0.0)
            print(
                f"  pair {number + 1} {tag:<10} {numbers.tokens_per_s or 0:7.0f} tok/s"
                f"  TTFT {p50(numbers, 'ttft_s') * 1e3:6.1f} ms"
                f"  TPOT {p50(numbers, 'tpot_s') * 1e3:5.2f} ms"
                f"  bound by seqs {bound:.0%} of the time"
            )
            await bench.engines.renew()


def _tagged(tag: str, before: Sequence[str]) -> list[str]:
    return [*before, tag]


def compared(database: Path) -> bool:
    """Run ``inferwatch compare`` on both; returns whether it shows no difference."""
    command = [sys.executable, "-m", "inferwatch.cli", "compare"]
    sides = ["tag:restarted", "tag:live", "--db", str(database)]
    printed = subprocess.run(
        [*command, *sides, "--json"], check=False, capture_output=True, text=True
    )
    subprocess.run([*command, *sides], check=False)
    sure = verdicts(json.loads(printed.stdout)) & {"better", "worse"}
    print(f"  surely: {', '.join(sorted(sure)) or 'neither better nor worse'}")
    return not sure


def verdicts(comparison: object) -> set[str]:
    """Return all verdicts in a comparison's JSON."""
    every: set[str] = set()
    if isinstance(comparison, dict):
        for name, value in comparison.items():
            every |= {value} if name == "verdict" else verdicts(value)
    elif isinstance(comparison, list):
        for each in comparison:
            every |= verdicts(each)
    return every


def main() -> int:
    """Run one round, or pairs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--values", default="2,4,8,16,32")
    parser.add_argument("--trial", type=float, default=3.0, help="seconds")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--interleaved",
        action="store_true",
        help="the grid's repeats in rounds, as the tune's are: a start for each trial",
    )
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--rate", type=float, default=15.0)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        os.environ["INFERWATCH_RUNTIME_DIR"] = f"{folder}/run"
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        database = Path(folder) / "sessions.db"
        if arguments.pairs:
            asyncio.run(pairs(database, arguments))
            return 0 if compared(database) else 1
        return 0 if asyncio.run(one_round(database, arguments)) else 1


if __name__ == "__main__":
    sys.exit(main())
