"""What screens show of a record is what plain SQL and numpy make of its rows.

The record is the sample's, of real vLLM under load. Nothing here asks inferwatch for
a number: an oracle that shared its arithmetic would be wrong together with it.
"""

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pytest

from collectors.contract.readings import Tick
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.connections import open_for_reading
from inferwatch.record.tables.codec import recorded
from inferwatch.sample import sample_file

Ints = npt.NDArray[np.int64]
US = 1e-6
"""The cells in which the values of a whole session are counted."""
QUICK_TICKS = (8, 24, 48)

SPANS = {
    "ttft_s": """SELECT first_token_ns, first_token_ns - arrived_ns FROM requests
        WHERE first_token_ordinal <= :upto AND arrived_ordinal <= :upto""",
    "queue_s": """SELECT scheduled_ns, scheduled_ns - added_ns FROM requests
        WHERE scheduled_ordinal <= :upto AND added_ordinal <= :upto""",
    "e2el_s": """SELECT finished_ns, finished_ns - arrived_ns FROM requests
        WHERE finished_ordinal <= :upto AND arrived_ordinal <= :upto
        AND reason NOT IN ('abort', 'error')""",
}
CLIENT_SPANS = {
    "ttft_s": """SELECT first_token_ns - intended_ns FROM client_requests
        WHERE ordinal <= :upto AND first_token_ns IS NOT NULL AND phase <> 'warmup'""",
    "e2el_s": """SELECT last_token_ns - intended_ns FROM client_requests
        WHERE ordinal <= :upto AND failure IS NULL AND phase <> 'warmup'""",
}
CAME = """SELECT count(*) FROM (SELECT
    CASE WHEN coalesce(added_ordinal, :last) < coalesce(arrived_ordinal, :last)
    THEN added_ns ELSE arrived_ns END AS t_ns FROM requests
    WHERE arrived_ordinal <= :upto OR added_ordinal <= :upto) WHERE t_ns > :since"""
"""Front end or engine told of it, whichever was heard first."""
ENDED = """SELECT count(*) FROM (SELECT CASE
    WHEN coalesce(engine_finished_ordinal, :last) < coalesce(finished_ordinal, :last)
    THEN engine_finished_ns ELSE finished_ns END AS t_ns,
    coalesce(engine_reason, reason) AS reason FROM requests
    WHERE finished_ordinal <= :upto OR engine_finished_ordinal <= :upto)
    WHERE t_ns > :since"""
OF_STEPS = "FROM steps WHERE ordinal <= :upto AND end_ns > :since"
COUNTS = {
    "arrived": CAME,
    "finished": f"{ENDED} AND reason NOT IN ('abort', 'error')",
    "aborted": f"{ENDED} AND reason = 'abort'",
    "preemptions": f"SELECT sum(preemptions) {OF_STEPS}",
    "steps": f"SELECT count(*) {OF_STEPS}",
    "members": f"SELECT sum(prefill_requests + decode_requests) {OF_STEPS}",
    "prefill_tokens": f"SELECT sum(prefill_tokens) {OF_STEPS}",
    "output_tokens": f"SELECT sum(output_tokens) {OF_STEPS}",
    "hits": f"SELECT sum(prefix_hits) {OF_STEPS}",
    "queries": f"SELECT sum(prefix_queries) {OF_STEPS}",
}


class Oracle:
    """The record up to one tick, asked in SQL; a window reaches back from it."""

    def __init__(self, db: sqlite3.Connection, upto: int, now_ns: int) -> None:
        self._db, self.upto, self.now_ns = db, upto, now_ns
        self._tokens = self._token_times()

    def counts(self, window: Window) -> dict[str, int]:
        """Rows and sums of the window."""
        asked = {"upto": self.upto, "since": self._since_ns(window), "last": 1 << 62}
        return {
            name: self._db.execute(query, asked).fetchone()[0] or 0
            for name, query in COUNTS.items()
        }

    def latencies(self, window: Window) -> dict[str, Ints]:
        """Sorted, in ns, of those whose moment lies in the window."""
        since_ns = self._since_ns(window)
        asked = {"upto": self.upto}
        moments = {
            name: self._db.execute(query, asked).fetchall()
            for name, query in SPANS.items()
        }
        moments |= self._of_tokens()
        return {
            name: np.sort([span for at, span in rows if at > since_ns])
            for name, rows in moments.items()
        }

    def step_durations(self, window: Window) -> Ints:
        """Sorted, in ns."""
        asked = {"upto": self.upto, "since": self._since_ns(window)}
        query = f"SELECT duration_ns {OF_STEPS}"
        return np.sort([each for (each,) in self._db.execute(query, asked)])

    def clients(self) -> dict[str, Ints]:
        """As the client saw its whole run."""
        asked = {"upto": self.upto}
        return {
            name: np.sort([span for (span,) in self._db.execute(query, asked)])
            for name, query in CLIENT_SPANS.items()
        }

    def _since_ns(self, window: Window) -> int:
        return -1 if window.value is None else self.now_ns - window.value

    def _token_times(self) -> dict[int, list[int]]:
        """When each token of each request came out, by the request's number."""
        query = "SELECT ordinal, end_ns FROM steps WHERE ordinal <= ?"
        ends = dict(self._db.execute(query, (self.upto,)))
        times: defaultdict[int, list[int]] = defaultdict(list)
        query = "SELECT members FROM step_members ORDER BY ordinal"
        for (blob,) in self._db.execute(query):
            held = json.loads(zlib.decompress(blob))
            ordinals = accumulate(held["ordinals"])
            for ordinal, *lists in zip(
                ordinals, held["members"], held["produced"], strict=True
            ):
                if ordinal in ends:
                    for member, tokens in zip(*lists, strict=True):
                        times[member] += [ends[ordinal]] * tokens
        return times

    def _of_tokens(self) -> dict[str, list[tuple[int, int]]]:
        """ITL, TPOT and prefill: moments and spans."""
        told: dict[str, list[tuple[int, int]]] = {
            "itl_s": [
                (later, later - earlier)
                for times in self._tokens.values()
                for earlier, later in pairwise(times)
            ],
            "tpot_s": [],
            "prefill_s": [],
        }
        query = """SELECT member, scheduled_ns, scheduled_ordinal <= :upto,
            engine_finished_ns, engine_finished_ordinal <= :upto FROM requests"""
        asked = {"upto": self.upto}
        for member, began_ns, began, ended_ns, ended in self._db.execute(query, asked):
            times = self._tokens.get(member, [])
            if times and began:
                told["prefill_s"].append((times[0], times[0] - began_ns))
            if len(times) > 1 and ended:
                mean_ns = (times[-1] - times[0]) / (len(times) - 1)
                told["tpot_s"].append((ended_ns, round(mean_ns)))
        return told


Watched = dict[int, tuple[Oracle, dict[Window, Snapshot]]]
"""By tick."""


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    connection = open_for_reading(sample_file())
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def watched(db: sqlite3.Connection) -> Watched:
    """Of each tick of the record: who knows the truth, and what screens show."""
    model, receipts = Model(), ReceiptClock()
    told: Watched = {}
    for ordinal, reading in recorded(db, 1):
        receipts.take(reading)
        model.fold(reading)
        if isinstance(reading, Tick):
            shown = {
                window: model.snapshot(reading.t_ns, SnapshotQuery(window, client=True))
                for window in Window
            }
            told[len(told) + 1] = Oracle(db, ordinal, reading.t_ns), shown
    return told


every_tick = pytest.mark.parametrize(
    "tick",
    [
        pytest.param(tick, marks=() if tick in QUICK_TICKS else pytest.mark.soak)
        for tick in range(1, 50)
    ],
)
every_window = pytest.mark.parametrize("window", Window, ids=lambda each: each.label)


def assert_same(shown: Quantiles, true: Ints, within: float) -> None:
    """Nearest rank: the value at ceil(p n), counted from 1."""
    assert shown.n == len(true)
    if not len(true):
        assert shown.p50 is None
        return
    for name in ("p50", "p90", "p95", "p99"):
        rank = int(np.ceil(len(true) * int(name[1:]) / 100))
        told = getattr(shown, name)
        assert told == pytest.approx(true[rank - 1] / 1e9, abs=within), name
    assert shown.max == true[-1] / 1e9
    assert shown.mean == pytest.approx(true.mean() / 1e9, rel=1e-9)


def cell(window: Window) -> float:
    return US if window is Window.SESSION else 1e-12


@every_tick
@every_window
def test_percentiles_are_those_of_the_rows(
    watched: Watched, tick: int, window: Window
) -> None:
    oracle, shown = watched[tick]
    true = oracle.latencies(window)
    rows = {each.metric: each.quantiles for each in shown[window].latencies}

    for metric, values in true.items():
        assert_same(rows.get(metric, Quantiles()), values, cell(window))
    assert rows.keys() <= true.keys()
    assert_same(shown[window].flow.step_s, oracle.step_durations(window), cell(window))


@every_tick
@every_window
def test_counts_and_rates_are_those_of_the_rows(
    watched: Watched, tick: int, window: Window
) -> None:
    oracle, shown = watched[tick]
    true, flow = oracle.counts(window), shown[window].flow
    seconds = shown[window].covered_ns / 1e9

    assert seconds <= (window.value or 1 << 62) / 1e9
    assert flow.finished == true["finished"]
    assert flow.aborted == true["aborted"]
    assert flow.preemptions == true["preemptions"]
    for rate, name in (
        (flow.arrivals_per_s, "arrived"),
        (flow.finished_per_s, "finished"),
        (flow.output_tokens_per_s, "output_tokens"),
        (flow.prefill_tokens_per_s, "prefill_tokens"),
    ):
        assert rate is None or rate * seconds == pytest.approx(true[name]), name
    for share, part, whole in (
        (flow.batch_mean, "members", "steps"),
        (flow.prefix_hit_rate, "hits", "queries"),
    ):
        assert share == (true[part] / true[whole] if true[whole] else None)


@every_tick
def test_a_client_saw_what_its_rows_say(watched: Watched, tick: int) -> None:
    oracle, shown = watched[tick]
    for window in Window:
        client = shown[window].client
        latencies = () if client is None else client.latencies
        rows = {each.metric: each.quantiles for each in latencies}
        for metric, values in oracle.clients().items():
            assert_same(rows.get(metric, Quantiles()), values, US)
