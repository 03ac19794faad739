"""A fleet as its users' Prometheus knows it becomes readings, each scrape once."""

import gzip
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec import Raw, json

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    Note,
    ServerInfo,
)
from collectors.http.server import Server
from collectors.servers import prometheus_api, prometheus_server
from collectors.servers.prometheus_api import (
    PrometheusApi,
    QueryError,
    ScrapedSeries,
    ServerTime,
)
from collectors.servers.prometheus_fleet import Fleet
from collectors.servers.prometheus_server import PrometheusReader, WithPast
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.collectors.fake_prometheus import FakePrometheus
from tests.collectors.http_server import TWICE, packed_twice, serving, whole
from tests.collectors.made_up_engine import MadeUpEngine

BEGAN_S = 1_800_000_000.0
A = {"instance": "10.0.0.1:8000", "job": "vllm"}
B = {"instance": "10.0.0.2:8000", "job": "vllm"}
SELECT = 'job="vllm"'


@pytest.fixture
async def prometheus() -> AsyncIterator[FakePrometheus]:
    async with FakePrometheus(BEGAN_S).serving() as serving:
        yield serving


@pytest.fixture
def clock() -> SessionClock:
    return SessionClock()


class Readers:
    """Readers of one Prometheus, closed at the end."""

    def __init__(self, url: str, clock: SessionClock) -> None:
        self._url, self._clock = url, clock
        self.made: list[PrometheusReader] = []

    def __call__(
        self, select: str = SELECT, path: str = "", **server: Any
    ) -> PrometheusReader:
        at = Server(url=self._url + path, **server)
        self.made.append(PrometheusReader(self._clock, at, select))
        return self.made[-1]


@pytest.fixture
async def reader(
    prometheus: FakePrometheus, clock: SessionClock
) -> AsyncIterator[Readers]:
    readers = Readers(prometheus.url, clock)
    yield readers
    for each in readers.made:
        await each.close()


def samples(readings: Sequence[AnyReading]) -> list[EngineSample]:
    return [each for each in readings if isinstance(each, EngineSample)]


def contacts(readings: Sequence[AnyReading]) -> list[Contact]:
    return [each for each in readings if isinstance(each, Contact)]


async def test_counters_gauges_and_buckets_come_as_the_engine_exposed_them(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    engine = MadeUpEngine()
    for _ in range(3):
        engine.request(ttft_s=0.03, itl_s=0.02)
    engine.running.set(7)
    engine.kv_usage.set(0.25)
    prometheus.scraped(BEGAN_S - 4, engine.text, A)

    (sample,) = samples(await reader().look())

    assert sample.source == "10.0.0.1:8000"
    assert (sample.rank, sample.model) == ("0", "tiny")
    assert (sample.running, sample.kv_usage) == (7, 0.25)
    assert (sample.prompt_tokens, sample.output_tokens) == (300, 30)
    assert sample.finished == {"stop": 3}
    ttft = sample.histograms["ttft_s"]
    assert ttft.counts[-1] == 3
    assert ttft.sum == pytest.approx(0.09)
    assert dict(zip(ttft.bounds, ttft.counts, strict=False))[0.04] == 3
    assert dict(zip(ttft.bounds, ttft.counts, strict=False))[0.02] == 0
    assert sample.histograms["itl_s"].counts[-1] == 27
    assert sample.by_prometheus


async def test_a_scrape_has_its_own_time_by_our_clock(
    prometheus: FakePrometheus, reader: Readers, clock: SessionClock
) -> None:
    prometheus.scraped(BEGAN_S - 20, MadeUpEngine().text, A, took_s=0.5)

    (sample,) = samples(await reader().look())

    ago_s = (clock.now_ns() - sample.t_ns) / 1e9
    assert 19.75 <= ago_s < 19.75 + 1  # in the middle of the half second it took
    assert 0.25 <= sample.uncertainty_ns / 1e9 < 0.25 + 1


async def test_a_server_whose_time_is_none_says_so(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    prometheus.now_s = 1e300

    with pytest.raises(QueryError, match="does not tell the time"):
        await reader().look()


def test_odd_stamps_numbers_and_labels_leave_the_rest_as_it_is(
    clock: SessionClock,
) -> None:
    name = "vllm:num_requests_running"
    series = {"instance": "10.0.0.1:8000", "engine": "0", "model_name": "tiny"}
    target = {"instance": "10.0.0.1:8000"}
    good_s = BEGAN_S - 4

    def scraped(labels: object, *values: tuple[float, str]) -> ScrapedSeries:
        return ScrapedSeries(Raw(json.encode(labels)), list(values))

    fleet = Fleet(told_apart=False)
    fleet.take_first(
        [
            scraped(["no", "labels"], (good_s, "1")),
            scraped({"__name__": "up", **target}, (good_s, "1")),
            scraped(
                {"__name__": "scrape_duration_seconds", **target},
                *[(good_s, text) for text in ("0.5s", "1e400", "0.01")],
            ),
            scraped(
                {"__name__": name, **series},
                *[(at_s, "9") for at_s in (-1e300, BEGAN_S * 1000, 1e300)],
                (good_s, "3"),
            ),
        ],
        BEGAN_S,
    )
    found = fleet.readings(ServerTime(BEGAN_S, clock.start_ns, 0), clock)

    assert [each.running for each in samples(found)] == [3]
    assert [each.t_ns for each in samples(found)] == [-4 * 10**9 + 5_000_000]


async def test_the_same_scrape_seen_twice_is_one_sample(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    reads = reader()
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    assert len(samples(await reads.look())) == 1

    prometheus.now_s += 5
    assert samples(await reads.look()) == []

    prometheus.scraped(BEGAN_S + 11, MadeUpEngine().text, A)
    prometheus.now_s += 10
    assert len(samples(await reads.look())) == 1


async def test_no_scrape_between_two_looks_is_missed(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    engine, reads = MadeUpEngine(), reader()
    prometheus.scraped(BEGAN_S - 1, engine.text, A)
    await reads.look()
    for second in range(5):
        engine.request(ttft_s=0.03, itl_s=0.02)
        prometheus.scraped(BEGAN_S + second, engine.text, A)
    prometheus.now_s += 6

    found = samples(await reads.look())

    assert [each.finished["stop"] for each in found] == [1, 2, 3, 4, 5]
    gaps = [after.t_ns - before.t_ns for before, after in pairwise(found)]
    assert gaps == pytest.approx([1e9] * 4, abs=1e6)


async def test_a_scrape_that_comes_while_we_ask_is_taken_whole_by_the_next_look(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    engine, reads = MadeUpEngine(), reader()
    engine.request(ttft_s=0.03, itl_s=0.02)
    prometheus.scraped(BEGAN_S - 2, MadeUpEngine().text, B)

    def meanwhile(query: str) -> None:
        if "first_token" in query:
            prometheus.scraped(BEGAN_S - 1, engine.text, A)
            prometheus.before_query = lambda _: None

    prometheus.before_query = meanwhile
    assert [each.source for each in samples(await reads.look())] == [B["instance"]]

    prometheus.now_s += 5
    (sample,) = samples(await reads.look())
    assert sample.source == A["instance"]
    assert sample.histograms["ttft_s"].counts[-1] == 1


async def test_a_fleet_of_any_size_costs_the_same_few_queries(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    for number in range(30):
        target = {"instance": f"10.0.0.{number}:8000", "job": "vllm"}
        prometheus.scraped(BEGAN_S - 4 - number / 10, MadeUpEngine().text, target)

    found = samples(await reader().look())

    assert len({each.source for each in found}) == 30
    assert len(prometheus.queries) <= 14
    assert all(SELECT in each for each in prometheus.queries[1:])


async def test_when_no_scrape_is_new_only_that_is_asked(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    reads = reader()
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    await reads.look()
    prometheus.queries.clear()
    prometheus.now_s += 5

    await reads.look()

    assert len(prometheus.queries) == 2


async def test_others_of_the_same_prometheus_are_left_alone(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    other = {"instance": "10.0.0.9:8000", "job": "staging"}
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, other)
    node = {"instance": "10.0.0.1:9100", "job": "node"}
    prometheus.scraped(BEGAN_S - 4, "node_load1 0.5\n", node)
    prometheus.failed(BEGAN_S - 4, {"instance": "10.0.0.2:9100", "job": "node"})

    chosen = await reader().look()
    every = await reader(select="").look()

    assert {each.source for each in chosen} == {A["instance"]}
    assert {each.source for each in every} == {A["instance"], other["instance"]}


async def test_data_parallel_ranks_are_samples_of_one_server(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    text = MadeUpEngine(rank="0").text + MadeUpEngine(rank="1").text
    prometheus.scraped(BEGAN_S - 4, text, A)

    found = samples(await reader().look())

    assert [(each.source, each.rank) for each in found] == [
        (A["instance"], "0"),
        (A["instance"], "1"),
    ]


async def test_servers_that_share_an_address_are_told_apart(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    for cluster in ("east", "west"):
        text = MadeUpEngine(model=cluster).text
        prometheus.scraped(BEGAN_S - 4, text, A | {"cluster": cluster})

    found = samples(await reader().look())

    assert len({each.source for each in found}) == 2
    assert {each.model for each in found} == {"east", "west"}


async def test_labels_alone_tell_servers_apart_where_up_was_not_kept(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    """A store that was written to remotely may hold but the engines' metrics."""
    for target in (A, B):
        for name in ("vllm:num_requests_running", "vllm:generation_tokens_total"):
            labels = {"engine": "0", "model_name": "tiny", **target}
            prometheus.add(name, labels, BEGAN_S - 4, "5")

    found = samples(await reader().look())

    assert [(each.source, each.running, each.output_tokens) for each in found] == [
        (A["instance"], 5, 5),
        (B["instance"], 5, 5),
    ]


async def test_what_a_server_is_is_said_once_with_what_would_tell_more(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    reads = reader()
    for ago_s in (14, 4):
        prometheus.scraped(
            BEGAN_S - ago_s, MadeUpEngine().text, A | {"pod": "vllm-7f9c"}
        )

    (info,) = [each for each in await reads.look() if isinstance(each, ServerInfo)]

    assert (info.name, info.family, info.models) == ("vllm-7f9c", "vllm", ["tiny"])
    assert (info.num_kv_blocks, info.kv_block_tokens) == (1000, 16)
    assert info.settings["job"] == "vllm"
    assert "attach to the server itself" in info.advice[0]


async def test_counters_that_begin_anew_are_a_restart(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    engine = MadeUpEngine()
    engine.request(ttft_s=0.03, itl_s=0.02)
    prometheus.scraped(BEGAN_S - 30, engine.text, A)
    prometheus.scraped(BEGAN_S - 15, MadeUpEngine().text, A)
    prometheus.scraped(BEGAN_S - 1, MadeUpEngine().text, A)

    told = contacts(await reader().look())

    assert [(each.answers, each.restarted) for each in told] == [
        (True, False),
        (True, True),
    ]


async def test_a_server_that_prometheus_cannot_scrape_is_lost_until_it_can(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    reads = reader()
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    prometheus.failed(BEGAN_S - 4, B)
    first = contacts(await reads.look())
    prometheus.failed(BEGAN_S + 11, A)
    prometheus.now_s += 12
    lost = contacts(await reads.look())
    prometheus.now_s += 5
    still = contacts(await reads.look())
    prometheus.scraped(BEGAN_S + 20, MadeUpEngine().text, A)
    prometheus.now_s += 5
    back = contacts(await reads.look())

    assert {(each.source, each.answers) for each in first} == {
        (A["instance"], True),
        (B["instance"], False),
    }
    assert [(each.source, each.answers) for each in lost] == [(A["instance"], False)]
    assert "its last scrape failed" in (lost[0].why or "")
    assert still == []
    assert [(each.source, each.answers) for each in back] == [(A["instance"], True)]


async def test_a_server_of_which_nothing_new_comes_is_lost(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    """Its target was taken out of the configuration, or its pod is gone."""
    reads = reader()
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    await reads.look()
    prometheus.now_s += 50
    assert contacts(await reads.look()) == []
    prometheus.now_s += 50

    (lost,) = contacts(await reads.look())

    assert (lost.answers, lost.why) == (
        False,
        "Prometheus has no scrape of it in the last 104 s",
    )


@pytest.mark.parametrize("path", ["", "/", "/graph", "/api/v1"])
async def test_its_address_may_be_as_the_browser_shows_it(
    prometheus: FakePrometheus, reader: Readers, path: str
) -> None:
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)

    assert samples(await reader(path=f"/prefix{path}").look())

    assert set(prometheus.paths) == {"/prefix/api/v1/query"}


async def test_keys_go_as_headers_and_nowhere_else(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    reads = reader(headers={"Authorization": "Bearer secret", "X-Scope-OrgID": "me"})

    found = await reads.look()
    sent = prometheus.headers
    prometheus.refusal = (403, b"secret")
    with pytest.raises(QueryError) as failed:
        await reads.look()

    assert (sent["authorization"], sent["x-scope-orgid"]) == ("Bearer secret", "me")
    assert "secret" not in f"{found}{reads.api.server}{failed.value}"


async def test_a_user_and_password_in_the_address_are_basic_credentials(
    prometheus: FakePrometheus, clock: SessionClock
) -> None:
    url = prometheus.url.replace("http://", "http://me:secret@")
    reads = PrometheusReader(clock, Server(url=url))
    await reads.look()
    prometheus.refusal = (500, b"")
    with pytest.raises(QueryError) as failed:
        await reads.look()
    await reads.close()

    assert prometheus.headers["authorization"].startswith("Basic ")
    assert "secret" not in str(failed.value)


async def test_an_outage_of_prometheus_is_told_once_and_made_up_for(
    prometheus: FakePrometheus, reader: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_server, "LOOK_EVERY_S", 0.01)
    reads = reader(every_s=0.01)
    engine = MadeUpEngine()
    prometheus.scraped(BEGAN_S - 4, engine.text, A)
    heard: list[AnyReading] = []
    refused = 0

    def asked(_: str) -> None:
        nonlocal refused
        refused += prometheus.refusal is not None
        if refused == 4:
            prometheus.refusal = None

    async for batch in reads.batches():
        heard += batch
        if len(samples(heard)) == 1 and not refused:
            prometheus.refusal = (503, b"restarting")
            prometheus.before_query = asked
            for second in (100, 200):
                prometheus.scraped(BEGAN_S + second, engine.text, A)
            prometheus.now_s += 201
        if len(samples(heard)) == 3:
            break
    notes = [each.text for each in heard if isinstance(each, Note)]

    assert len(notes) == 2
    assert "HTTP status 503" in notes[0]
    assert notes[1] == "Prometheus answers again"
    assert [each.answers for each in contacts(heard)] == [True, False, True]


async def test_what_prometheus_warns_of_is_told_once(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    """Such as Thanos, when one of its stores did not answer."""
    prometheus.warnings = ["store 3 is down: partial response"]
    prometheus.scraped(BEGAN_S - 4, MadeUpEngine().text, A)
    readings = await anext(reader().batches())
    notes = [each for each in readings if isinstance(each, Note)]

    assert [each.text for each in notes] == [
        "Prometheus warns: store 3 is down: partial response"
    ]


async def test_a_fleet_that_is_empty_is_said_by_prometheus_itself(
    prometheus: FakePrometheus, reader: Readers
) -> None:
    (none,) = contacts(await anext(reader(select='job="nix"').batches()))

    assert none.source == prometheus.url.removeprefix("http://")
    assert (none.answers, none.why) == (
        False,
        'it knows no engines that match job="nix"',
    )


async def past_and_present(
    prometheus: FakePrometheus, url: str, select: str = SELECT
) -> list[AnyReading]:
    """Of a server at that address, which tells one thing live."""
    clock = SessionClock()
    server = Server(url=url, name="mine")
    live = Told([EngineSample(source="mine", t_ns=clock.now_ns(), running=1)])
    both = WithPast(clock, server, Server(url=prometheus.url), select, live)
    heard = [each async for batch in both.batches() for each in batch]
    await both.close()
    return heard


class Told:
    """A collector of what a test says."""

    def __init__(self, readings: list[AnyReading]) -> None:
        self._readings = readings

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        yield self._readings

    async def close(self) -> None:
        """There is nothing to close."""


async def test_the_past_of_a_server_comes_before_what_it_says_itself(
    prometheus: FakePrometheus,
) -> None:
    for minutes in range(40):
        engine = MadeUpEngine()
        engine.running.set(minutes)
        for target in (A, B):
            prometheus.scraped(BEGAN_S - 60 * minutes - 1, engine.text, target)

    found = samples(await past_and_present(prometheus, "http://10.0.0.1:8000"))

    assert [each.running for each in found] == [*range(29, -1, -1), 1]
    assert [each.by_prometheus for each in found] == [True] * 30 + [False]
    assert {each.source for each in found} == {"mine"}
    assert found[0].t_ns < -1700e9
    assert [each.t_ns for each in found] == sorted(each.t_ns for each in found)


NOT_TO_BE_HAD = {
    "it is not there": (B, None, "no past: Prometheus knows 10.0.0.2:8000, 10.0.0.3"),
    "two may be meant": (A, None, "and not this"),
    "prometheus is down": (A, (503, b""), "HTTP status 503"),
}


@pytest.mark.parametrize(
    ("target", "refusal", "why"), NOT_TO_BE_HAD.values(), ids=NOT_TO_BE_HAD
)
async def test_without_a_past_the_present_comes_at_once_and_why_is_said(
    prometheus: FakePrometheus,
    target: dict[str, str],
    refusal: tuple[int, bytes] | None,
    why: str,
) -> None:
    other = {"instance": "10.0.0.3:8000", "job": "vllm"}
    for each in (target, other):
        prometheus.scraped(BEGAN_S - 1, MadeUpEngine().text, each)
    prometheus.refusal = refusal

    heard = await past_and_present(prometheus, "http://gpu1:8000")

    (note,) = [each for each in heard if isinstance(each, Note)]
    assert why in note.text
    assert [each.by_prometheus for each in samples(heard)] == [False]


async def test_the_past_is_not_waited_for_when_prometheus_is_slow(
    prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_server, "PAST_PATIENCE_S", 0.05)
    prometheus.delay_s = 5

    heard = await past_and_present(prometheus, "http://gpu1:8000")

    assert len(samples(heard)) == 1
    assert "no answer in 0.05 s" in str(heard[0])


async def test_rates_and_means_of_a_window_are_true_at_any_scrape_interval(
    prometheus: FakePrometheus, reader: Readers, clock: SessionClock
) -> None:
    """One request a second, scraped every 15 s: what a minute's window must show."""
    engine = MadeUpEngine()
    for second in range(75):
        engine.request(ttft_s=0.05 if second < 30 else 0.5, itl_s=0.02, tokens=11)
        if second % 15 == 14:
            prometheus.scraped(BEGAN_S - 75 + second + 0.5, engine.text, A)
    model = Model()
    for reading in await reader().look():
        model.fold(reading)

    (server,) = model.snapshot(clock.now_ns(), SnapshotQuery(Window.MINUTE)).servers

    assert server.via is Via.PROMETHEUS
    assert server.output_tokens_per_s == pytest.approx(11, rel=0.02)
    assert server.arrivals_per_s == pytest.approx(1, rel=0.02)
    ttft = next(each for each in server.latencies if each.metric == "ttft_s")
    assert ttft.quantiles.n == 45  # between the first and last scrape in the minute
    assert ttft.quantiles.mean == pytest.approx(0.5)


async def test_nobody_behind_the_address_is_said_in_a_sentence(
    clock: SessionClock,
) -> None:
    reads = PrometheusReader(clock, Server(url="http://127.0.0.1:9"))

    with pytest.raises(
        QueryError, match=r"at http://127\.0\.0\.1:9: nothing listens there"
    ):
        await reads.look()
    await reads.close()


async def test_an_answer_that_takes_too_long_is_none(
    prometheus: FakePrometheus,
) -> None:
    api = PrometheusApi(Server(url=prometheus.url), patience_s=0.05)
    prometheus.delay_s = 5

    with pytest.raises(QueryError, match=r"does not answer within 0\.05 s"):
        await api.now()
    await api.close()


async def test_an_answer_that_is_too_large_is_not_read_to_its_end(
    prometheus: FakePrometheus, reader: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_api, "MOST_BYTES", 1 << 20)
    prometheus.refusal = (200, b" " * (3 << 20))

    with pytest.raises(QueryError, match="more than 1 MiB: select fewer engines"):
        await reader().look()


async def test_a_bomb_in_place_of_an_answer_is_not_unpacked() -> None:
    bomb = whole(packed_twice(), headers=TWICE)
    async with serving({"/api/v1/query": bomb}) as server:
        api = PrometheusApi(Server(url=server.url))
        tracemalloc.start()
        with pytest.raises(QueryError, match="packed as 'gzip, gzip'"):
            await api.now()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await api.close()
    assert most < 5_000_000


async def test_what_prometheus_packs_once_is_understood() -> None:
    told = b'{"status":"success","data":{"resultType":"scalar","result":[7e8,"1"]}}'
    packed = whole(gzip.compress(told), headers="content-encoding: gzip\r\n")
    async with serving({"/api/v1/query": packed}) as server:
        api = PrometheusApi(Server(url=server.url))
        assert (await api.now()).unix_s == 7e8
        await api.close()


async def test_more_samples_than_memory_is_for_are_not_decoded(
    prometheus: FakePrometheus, reader: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus_api, "MOST_VALUES", 1_000, raising=False)
    samples = b",".join([b'[0,"1"]'] * 2_000)
    prometheus.refusal = (
        200,
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},'
        b'"values":[%b]}]}}' % samples,
    )

    with pytest.raises(QueryError, match=r"more than 1,000 series and samples"):
        await reader().look()


HTML = b"<html>sign in</html>"
REFUSED = {
    "a matcher it cannot read": (
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}'),
        "it cannot read the query, look at --select: parse error",
    ),
    "too much to load": (
        (422, b'{"status":"error","errorType":"execution","error":"too many samples"}'),
        "it did not carry the query out: too many samples",
    ),
    "overloaded": (
        (503, b'{"status":"error","errorType":"timeout","error":"query timed out"}'),
        "it did not carry the query out: query timed out",
    ),
    "not ready": ((503, b"Service Unavailable"), "answers with HTTP status 503"),
    "a login page": ((200, HTML), "answers with something else than Prometheus would"),
    "no key": ((401, b"Unauthorized"), "status 401: it wants to know who asks"),
    "no such path": ((404, b"404"), "is that its address, path prefix included?"),
    "a redirect": ((302, b""), "give the address it leads to"),
    "half a body": ((200, b'{"status":"success","da'), "something else than Prom"),
    "other JSON": ((200, b"[[[1]]]"), "something else than Prometheus would"),
    "JSON without end": ((200, b"[" * 100_000), "something else than Prometheus would"),
    "no data": ((200, b'{"status":"success"}'), "does not tell the time"),
}


@pytest.mark.parametrize(("refusal", "sentence"), REFUSED.values(), ids=REFUSED)
async def test_what_is_wrong_is_said_in_a_sentence(
    prometheus: FakePrometheus,
    reader: Readers,
    refusal: tuple[int, bytes],
    sentence: str,
) -> None:
    prometheus.refusal = refusal

    with pytest.raises(QueryError) as failed:
        await reader().look()

    assert sentence in str(failed.value)
    assert "\n" not in str(failed.value)
