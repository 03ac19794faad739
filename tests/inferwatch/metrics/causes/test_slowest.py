"""The slowest of a window are known exactly, in memory that does not grow."""

from random import Random

import pytest

from inferwatch.metrics.causes.cause import Cause, SlowRequests
from inferwatch.metrics.causes.queue import PLACE, nothing_spent
from inferwatch.metrics.requests import slowest
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.slowest import SlowLog
from inferwatch.metrics.series.samples import Samples
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Window

S = 1_000_000_000
MS = 1_000_000


class Told:
    """First tokens: in the log, in the samples, and in a list of all."""

    def __init__(self) -> None:
        self.log, self.samples = SlowLog(), Samples()
        self.all: list[tuple[int, int, Cause]] = []

    def add(self, t_ns: int, ttft_ns: int, cause: Cause) -> None:
        spent_ns = nothing_spent()
        spent_ns[PLACE[cause]] = ttft_ns
        request = Request(
            source="e",
            seen_ns=0,
            request_id=str(len(self.all)),
            arrived_ns=t_ns - ttft_ns,
            ttft_ns=ttft_ns,
            ttft_spent_ns=spent_ns,
        )
        self.log.add(request, t_ns)
        self.samples.add(t_ns, ttft_ns)
        self.all.append((t_ns, ttft_ns, cause))

    def of(self, now_ns: int, window: Window) -> SlowRequests | None:
        return self.log.of(now_ns, window, self.samples.quantiles(now_ns, window))


def some(seconds: int, per_s: int) -> Told:
    random, told = Random(1), Told()
    for number in range(seconds * per_s):
        cause = random.choice([Cause.QUEUE_KV, Cause.PREFILL, Cause.API])
        told.add(number * S // per_s, round(random.expovariate(10) * S), cause)
    return told


@pytest.mark.parametrize("window", Window)
@pytest.mark.parametrize(("seconds", "per_s"), [(3, 9), (9, 5), (400, 5), (400, 40)])
def test_they_are_those_from_p99_on_or_the_slowest_tenth(
    window: Window, seconds: int, per_s: int
) -> None:
    told, now_ns = some(seconds, per_s), seconds * S
    since_ns = -1 if window.value is None else now_ns - window.value
    here = sorted((ttft, c) for t_ns, ttft, c in told.all if t_ns > since_ns)
    n = len(here)
    most = n - (-(-n * 99 // 100)) + 1 if n >= 100 else max(1, n // 10)
    slow = here[-most:]

    found = told.of(now_ns, window)

    assert found is not None
    assert (found.of, found.is_p99) == (n, n >= 100)
    assert found.n == pytest.approx(
        most, abs=window is Window.SESSION
    )  # a cell is 1 µs
    assert found.worst_ttft_s == here[-1][0] / S
    assert sum(each.share for each in found.groups) == pytest.approx(1)
    assert sum(each.requests for each in found.groups) == found.n
    for group in found.groups:
        of_cause = [ttft for ttft, cause in slow if cause is group.cause]
        assert group.requests == pytest.approx(len(of_cause), abs=1)
        assert group.worst_ttft_s == max(of_cause) / S


def test_the_sentence_names_what_took_most() -> None:
    told = Told()
    for number in range(200):
        cause = Cause.QUEUE_KV if number % 100 == 99 else Cause.PREFILL
        told.add(number * MS, (1 + number % 100) * MS, cause)

    found = told.of(S, Window.MINUTE)

    assert found is not None
    assert found.sentence == "50% of p99 TTFT is queueing for KV blocks"


def test_nothing_is_slow_before_a_first_token() -> None:
    told = some(3, 9)

    assert SlowLog().of(S, Window.MINUTE, None) is None
    assert told.of(900 * S, Window.MINUTE) is None


def test_its_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowest, "MOST_A_SECOND", 3)
    monkeypatch.setattr(slowest, "MOST_BEFORE", 20)
    monkeypatch.setattr(slowest, "KEPT_S", 30)
    told = some(400, 40)

    kept = sum(len(each) for each in told.log._lately.values())
    before = [slow.ttft_ns for slow in told.log._before]
    assert kept <= 31 * 3
    assert len(before) == 20
    assert before == sorted(before)
    old = sorted(ttft for t_ns, ttft, _ in told.all if t_ns < 369 * S)
    assert before[-1] == old[-1]


def test_it_is_restored_as_it_was() -> None:
    told, again = some(700, 7), SlowLog()
    parts = Parts()
    saved = told.log.saved(parts)

    again.restore(saved, WrittenParts(parts.lasting, parts.passing))

    for window in Window:
        quantiles = told.samples.quantiles(700 * S, window)
        expected = told.log.of(700 * S, window, quantiles)
        assert again.of(700 * S, window, quantiles) == expected
    told.add(700 * S, 9 * S, Cause.API)
    once_more = Parts()
    told.log.saved(once_more)
    assert len(set(parts.lasting) & set(once_more.lasting)) > 0.9 * len(parts.lasting)
