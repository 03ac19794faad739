"""Requests that traces tell of take the place of what a server only counts."""

from typing import Any

from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    Histogram,
    RequestSpan,
    ServerInfo,
    Vantage,
    WatchedSlo,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.window import Latency, Window
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

S = 1_000_000_000
MS = 1_000_000
CHAT, CODE = "chat:8000", "code:8000"
HISTOGRAMS = ("ttft_s", "itl_s", "e2el_s", "queue_s", "prefill_s")


def span(end_s: float, ttft_ms: float = 200, **more: Any) -> RequestSpan:
    """A request of a second and 11 tokens."""
    end_ns = round(end_s * S)
    told = RequestSpan(
        source=CHAT,
        request_id="cmpl-1",
        arrived_ns=end_ns - S,
        end_ns=end_ns,
        ttft_ns=round(ttft_ms * MS),
        queue_ns=50 * MS,
        prefill_ns=100 * MS,
        decode_ns=800 * MS,
        e2el_ns=S,
        prompt_tokens=40,
        output_tokens=11,
        max_tokens=16,
    )
    return replace(told, **more)


def sample(t_s: float, requests: int, source: str = CHAT) -> EngineSample:
    """So many requests have ended, each in its first bucket."""
    counted = Histogram(
        bounds=[1.0, 2.0], counts=[requests, requests, requests], sum=0.5 * requests
    )
    return EngineSample(
        source=source,
        t_ns=round(t_s * S),
        running=0,
        waiting=0,
        output_tokens=11 * requests,
        finished={"stop": requests},
        histograms=dict.fromkeys(HISTOGRAMS, counted),
    )


def scraped(source: str = CHAT) -> list[AnyReading]:
    """A server that is there, and two requests that it counts."""
    return [
        ServerInfo(
            source=source,
            t_ns=0,
            name=source,
            family="vllm",
            advice=[
                "probe: INFERWATCH_PROBE=1",
                "start it with --otlp-traces-endpoint",
            ],
        ),
        Contact(source=source, t_ns=0, answers=True),
        sample(0, 100, source),
        sample(9, 102, source),
    ]


def shown(
    *readings: AnyReading, window: Window = Window.MINUTE, source: str | None = None
) -> Snapshot:
    model = Model()
    for each in readings:
        model.fold(each)
    return model.snapshot(10 * S, SnapshotQuery(window, source=source))


def row(snapshot: Snapshot, metric: str) -> Latency:
    return next(each for each in snapshot.latencies if each.metric == metric)


def test_exact_latencies_take_the_place_of_brackets() -> None:
    before = shown(*scraped())
    assert (before.via, row(before, "ttft_s").vantage) == (Via.SCRAPE, Vantage.SCRAPE)
    now = shown(*scraped(), span(5, ttft_ms=100), span(8, ttft_ms=300))
    assert now.via is Via.TRACES
    ttft = row(now, "ttft_s")
    assert (ttft.vantage, ttft.brackets) == (Vantage.FRONTEND, None)
    assert (ttft.quantiles.n, ttft.quantiles.mean, ttft.quantiles.max) == (2, 0.2, 0.3)
    means = [row(now, metric).quantiles.mean for metric in ("queue_s", "prefill_s")]
    assert means == [0.05, 0.1]
    assert row(now, "tpot_s").quantiles.mean == 0.08
    assert row(now, "e2el_s").quantiles.mean == 1.0


def test_what_traces_do_not_have_is_still_as_counted() -> None:
    now = shown(*scraped(), span(5), span(8))
    itl = row(now, "itl_s")
    assert (itl.vantage, itl.quantiles.n) == (Vantage.SCRAPE, 2)
    assert itl.brackets is not None
    assert [each.metric for each in now.latencies] == [
        "ttft_s",
        "queue_s",
        "prefill_s",
        "tpot_s",
        "itl_s",
        "e2el_s",
    ]


def test_requests_are_counted_once_though_both_tell_of_them() -> None:
    now = shown(*scraped(), span(5), span(8))
    assert (now.flow.finished, row(now, "e2el_s").quantiles.n) == (2, 2)


def test_each_request_has_a_row_with_its_phases() -> None:
    (told,) = shown(*scraped(), span(5)).requests
    assert (told.external_id, told.state) == ("cmpl-1", RequestState.FINISHED)
    assert (told.arrived_ns, told.ttft_s, told.e2el_s) == (4 * S, 0.2, 1.0)
    phases = (told.queue_s, told.prefill_s, told.decode_s, told.tpot_s)
    assert phases == (0.05, 0.1, 0.8, 0.08)
    lengths = (told.prompt_tokens, told.output_tokens, told.max_tokens)
    assert lengths == (40, 11, 16)


def test_clients_may_choose_an_id_twice() -> None:
    rows = shown(*scraped(), span(5), span(6)).requests
    assert len({each.key for each in rows}) == 2


def test_what_a_trace_does_not_tell_is_unknown_and_not_zero() -> None:
    bare = RequestSpan(source=CHAT, request_id="x", arrived_ns=4 * S, end_ns=5 * S)
    now = shown(*scraped(), bare)
    (told,) = now.requests
    assert told.ttft_s is told.e2el_s is told.tpot_s is told.decode_s is None
    assert row(now, "ttft_s").vantage is Vantage.SCRAPE


def test_a_window_in_which_traces_told_of_nothing_is_as_counted() -> None:
    early = [*scraped(), span(-4)]
    assert shown(*early, window=Window.TEN_SECONDS).via is Via.SCRAPE
    assert shown(*early, window=Window.MINUTE).via is Via.TRACES


def test_traces_of_a_few_of_the_requests_are_not_taken_for_all() -> None:
    (*there, first, _) = scraped()
    for requests, via in ((2, Via.TRACES), (3, Via.SCRAPE)):
        many = [*there, first, sample(9, 100 + requests), span(8)]
        assert shown(*many, window=Window.SESSION).via is via


def test_a_window_in_which_nothing_ended_is_told_by_traces_all_the_same() -> None:
    (*there, first, _) = scraped()
    idle = shown(*there, first, sample(9, 100), span(-4), window=Window.TEN_SECONDS)
    assert (idle.via, row(idle, "ttft_s").quantiles.n) == (Via.TRACES, 0)
    assert idle.servers[0].via is Via.TRACES
    assert len(idle.advice) == 1


def test_a_server_with_a_probe_needs_no_traces() -> None:
    probe = EngineInfo(source=CHAT, t_ns=1, pid=1, model="m", vllm_version="0.32.0")
    now = shown(*scraped(), probe, span(5))
    assert now.via is Via.PROBE
    assert now.requests == ()
    assert row(now, "ttft_s").quantiles.n == 0


def test_several_servers_are_exact_together_only_if_all_are() -> None:
    both = [*scraped(), *scraped(CODE), span(5), span(6)]
    together = shown(*both)
    assert (together.via, row(together, "ttft_s").quantiles.n) == (Via.SCRAPE, 4)
    alone = shown(*both, source=CHAT)
    assert (alone.via, row(alone, "ttft_s").quantiles.n) == (Via.TRACES, 2)
    assert [state.via for state in together.servers] == [Via.TRACES, Via.SCRAPE]

    exact = shown(*both, span(7, ttft_ms=900, source=CODE))
    assert (exact.via, row(exact, "ttft_s").quantiles.max) == (Via.TRACES, 0.9)
    alone = shown(*both, span(7, ttft_ms=900, source=CODE), source=CODE)
    assert row(alone, "ttft_s").quantiles.n == 1
    assert [each.external_id for each in alone.requests] == ["cmpl-1"]


def test_the_share_that_met_an_objective_is_exact() -> None:
    slo = WatchedSlo(t_ns=0, slo="ttft_s<0.3")
    spans = [span(5, ttft_ms=ms) for ms in (100, 299.9, 300, 500)]
    for window in Window:
        ttft = row(shown(slo, *scraped(), *spans, window=window), "ttft_s")
        assert (ttft.objective_s, ttft.met) == (0.3, (0.5, 0.5))


def test_advice_that_was_followed_is_given_no_more() -> None:
    assert len(shown(*scraped()).advice) == 2
    assert shown(*scraped(), span(5)).advice == ("probe: INFERWATCH_PROBE=1",)


def test_worst_and_mean_over_time_are_those_of_single_requests() -> None:
    line = shown(*scraped(), span(5, ttft_ms=100), span(5, ttft_ms=300)).timeline
    at = line.index_at(5 * S)
    assert at is not None
    assert (line.ttft_mean_s[at], line.ttft_max_s[at]) == (0.2, 0.3)


def test_traces_alone_are_enough() -> None:
    now = shown(span(5), span(6))
    assert row(now, "ttft_s").quantiles.n == 2
    assert now.flow.finished == 2
