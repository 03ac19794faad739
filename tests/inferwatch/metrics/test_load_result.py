"""What is made of a load run's readings: counts, latencies, verdict, goodput."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    TokenTimes,
)
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.client_verdict import ClientState
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.printing.summary.load import load_text, summarise_load

MS = 1_000_000
RUN = "load-1"


def request(index: int, **changes: Any) -> RequestRecord:
    """Due every 100 ms, sent 1 ms late, first token 50 ms later, then 10 of 20 ms."""
    due_ns = index * 100 * MS
    fields = {
        "source": RUN,
        "index": index,
        "external_id": f"{RUN}-{index}",
        "phase": Phase.STEADY,
        "intended_ns": due_ns,
        "sent_ns": due_ns + 1 * MS,
        "first_token_ns": due_ns + 51 * MS,
        "last_token_ns": due_ns + 251 * MS,
        "end_ns": due_ns + 252 * MS,
        "prompt_tokens": 32,
        "output_tokens": 11,
    }
    return RequestRecord(**{**fields, **changes})


def tokens(index: int, gaps_ms: Iterable[float] = (20,) * 10) -> TokenTimes:
    return TokenTimes(
        source=RUN,
        external_id=f"{RUN}-{index}",
        first_ns=index * 100 * MS + 51 * MS,
        gaps_ns=[round(gap * MS) for gap in gaps_ms],
    )


def sample(**changes: Any) -> ClientSample:
    fields = {
        "source": RUN,
        "t_ns": 10**10,
        "span_ns": 10**10,
        "final": True,
        "transport": "raw",
        "sends": 100,
        "tokens": 1100,
        "kernel_stamps": 1100,
        "reads": 1200,
        "recv_lag_p50_ns": 10_000,
        "recv_lag_p99_ns": 100_000,
        "recv_lag_max_ns": 200_000,
        "cpu_s": 1.0,
    }
    return ClientSample(**{**fields, **changes})


@pytest.fixture
def run() -> Callable[..., LoadResult]:
    """``run(readings, slo=..., most=...)``."""

    def make(
        readings: Iterable[AnyReading], slo: str | None = None, most: int | None = None
    ) -> LoadResult:
        book = LoadBook(RUN, most)
        for reading in readings:
            book.fold(reading)
        return load_result(book, parse_slo(slo) if slo else None)

    return make


def hundred(**changes: Any) -> list[AnyReading]:
    pairs = ((request(n, **changes), tokens(n)) for n in range(100))
    return [reading for pair in pairs for reading in pair]


Run = Callable[..., LoadResult]


def test_latencies_are_from_the_due_time_and_from_the_send(run: Run) -> None:
    result = run(hundred())

    means = {k: each.quantiles.mean for k, each in result.latencies.items()}
    assert means == pytest.approx(
        {
            "ttft_s": 0.051,
            "ttft_from_send_s": 0.050,
            "tpot_s": 0.020,
            "itl_s": 0.020,
            "e2el_s": 0.251,
            "e2el_from_send_s": 0.250,
        }
    )
    assert result.latencies["itl_s"].quantiles.n == 1000


def test_the_warm_up_is_counted_and_left_out(run: Run) -> None:
    slow = request(200, phase=Phase.WARMUP, first_token_ns=10**12)

    result = run([slow, *hundred()])

    assert (result.warmup, result.sent) == (1, 100)
    assert result.latencies["ttft_s"].quantiles.max == pytest.approx(0.051)


def test_other_runs_are_not_folded(run: Run) -> None:
    assert run([request(0, source="load-2"), *hundred()]).sent == 100


def test_failures_are_counted_by_kind_with_the_first_of_each(run: Run) -> None:
    failed = [
        request(200, failure="http_4xx", detail="429 slow down", first_token_ns=None),
        request(201, failure="http_4xx", detail="429 again", first_token_ns=None),
        request(202, failure="refused", detail="no", sent_ns=None),
        request(203, failure="aborted"),
    ]

    result = run([*hundred(), *failed])

    assert {k: (f.count, f.first) for k, f in result.failures.items()} == {
        "http_4xx": (2, "429 slow down"),
        "refused": (1, "no"),
    }
    assert (result.failed, result.aborted, result.sent) == (3, 1, 104)
    assert result.unaccounted == 0


def test_who_only_ever_got_refusals_never_was_answered(run: Run) -> None:
    gone = {"failure": "refused", "first_token_ns": None, "last_token_ns": None}

    assert run([request(0, **gone)]).unanswered
    assert not run([request(0, **gone), request(1)]).unanswered
    assert not run([request(0, **{**gone, "failure": "http_5xx"})]).unanswered


def test_who_got_a_token_before_the_time_out_was_answered(run: Run) -> None:
    assert not run([request(0, failure="timeout")]).unanswered


def test_a_request_without_an_outcome_is_said(run: Run) -> None:
    readings = [*hundred(), sample(sends=103)]

    result = run(readings)

    assert (result.sent, result.succeeded, result.unaccounted) == (103, 100, 3)
    summary = summarise_load(result)
    assert summary["requests"]["unaccounted"] == 3
    assert "the outcome of 3 requests is unknown" in load_text(summary)


def test_where_each_request_has_its_outcome_nothing_is_said(run: Run) -> None:
    assert "outcome" not in load_text(summarise_load(run([*hundred(), sample()])))


def test_rates_are_asked_drawn_and_sent(run: Run) -> None:
    told = LoadEvent(source=RUN, t_ns=0, kind=LoadKind.RATE, rate_per_s=9.0)

    rate = run([told, *hundred()]).rate

    assert (rate.asked, rate.held_back) == (9.0, 0)
    assert rate.scheduled == pytest.approx(10)
    assert rate.achieved == pytest.approx(10)


def test_what_was_in_flight_when_the_last_was_sent_is_told(run: Run) -> None:
    draining = LoadEvent(source=RUN, t_ns=9_905 * MS, kind=LoadKind.DRAINING)

    assert run([*hundred(), draining]).in_flight_at_end == 3
    assert run(hundred()).in_flight_at_end is None


def test_a_good_client_is_ok(run: Run) -> None:
    assert run([*hundred(), sample()]).verdict.state is ClientState.OK


def test_a_client_of_which_nothing_is_known_is_not_judged(run: Run) -> None:
    assert run(hundred()).verdict.state is ClientState.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"merged_reads": 13, "recv_lag_p99_ns": 3 * MS},
            "1.1% of reads were merged; receive lag p99 is 3 ms",
        ),
        ({"cpu_s": 7.5}, "the load generator used 75% of a core"),
        (
            {"merged_reads": 13, "recv_lag_p50_ns": None, "recv_lag_p99_ns": None},
            "1.1% of reads were merged",
        ),
    ],
)
def test_a_client_that_was_too_slow_says_why(
    run: Run, changes: dict[str, Any], said: str
) -> None:
    verdict = run([*hundred(), sample(**changes)]).verdict

    assert verdict.state is ClientState.CLIENT_BOUND
    assert said in verdict.reasons[0]


def test_late_sends_are_the_clients_fault(run: Run) -> None:
    late = [request(n, sent_ns=(n * 100 + 8) * MS) for n in range(100)]

    verdict = run([*late, sample()]).verdict

    assert verdict.state is ClientState.CLIENT_BOUND
    assert "send lag p99 is 8 ms or more" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("sends", "late", "bound"), [(1_000, 13, True), (400, 6, False)]
)
def test_a_p99_that_enough_sends_stand_behind_counts_as_it_is(
    run: Run, sends: int, late: int, bound: bool
) -> None:
    """The reported TTFT's p99 is made of the late ones, and has no mark."""
    lags_ms = [8 if n % (sends // late) == 0 else 0 for n in range(sends)]
    requests = [
        request(n, sent_ns=(n * 100 + lag_ms) * MS) for n, lag_ms in enumerate(lags_ms)
    ]

    verdict = run([*requests, sample()]).verdict

    assert (verdict.state is ClientState.CLIENT_BOUND) == bound
    assert not bound or verdict.reasons[0].startswith(
        "send lag p99 is 8 ms, more than 10%"
    )


def test_one_hiccup_of_the_machine_accuses_nobody(run: Run) -> None:
    readings = [*hundred(), request(100, sent_ns=10_020 * MS), sample()]

    assert run(readings).verdict.state is ClientState.OK


def test_a_late_read_of_one_chunk_has_the_kernels_stamp(run: Run) -> None:
    late = sample(merged_reads=0, recv_lag_p99_ns=3 * MS)

    assert run([*hundred(), late]).verdict.state is ClientState.OK


def test_reads_merged_at_once_were_sent_so(run: Run) -> None:
    assert run([*hundred(), sample(merged_reads=600)]).verdict.state is ClientState.OK


def test_a_send_that_a_cap_held_back_is_not_late(run: Run) -> None:
    slow = [
        request(0, end_ns=1000 * MS),
        request(1, sent_ns=1000 * MS, end_ns=1100 * MS),
        request(2, sent_ns=1100 * MS, end_ns=1200 * MS),
    ]

    capped = run([*slow, sample()], most=1)

    assert capped.rate.held_back == 2
    assert capped.send_lag.quantiles.max == pytest.approx(0.001)
    assert run([*slow, sample()], most=3).rate.held_back == 0


def test_goodput_asks_for_every_limit_at_once(run: Run) -> None:
    readings = hundred()
    readings[0] = request(0, first_token_ns=100 * MS)  # TTFT 99 ms
    readings[3] = tokens(1, [20] * 9 + [90])  # a gap of 90 ms

    goodput = run(readings, "ttft_s<60ms itl_s<50ms").goodput

    assert goodput is not None
    assert (goodput.n, goodput.good) == (100, 98)
    assert goodput.missed == {"ttft_s": 1, "itl_s": 1}
    assert goodput.holds(0.98)
    assert not goodput.holds(0.99)
    assert goodput.good_per_s == pytest.approx(98 / 10.152)


def test_objectives_are_judged_from_the_due_time(run: Run) -> None:
    held = request(0, sent_ns=500 * MS, first_token_ns=550 * MS)

    goodput = run([held], "ttft_s<0.1").goodput

    assert goodput is not None
    assert goodput.good == 0


def test_a_failure_is_never_good(run: Run) -> None:
    goodput = run([request(0, failure="broken_stream")], "ttft_s<1").goodput

    assert goodput is not None
    assert (goodput.good, goodput.missed) == (0, {"failed": 1})


def test_what_we_aborted_counts_only_once_it_was_too_late(run: Run) -> None:
    cut = {"failure": "aborted", "first_token_ns": None, "last_token_ns": None}
    early = request(0, end_ns=50 * MS, **cut)
    late = request(1, end_ns=700 * MS, **cut)

    goodput = run([early, late], "ttft_s<0.5").goodput

    assert goodput is not None
    assert (goodput.n, goodput.good, goodput.undetermined) == (1, 0, 1)


@pytest.mark.parametrize("slo", ["tpot_s<10ms", "ttft_s<60ms tpot_s<30ms"])
def test_without_a_count_of_its_tokens_a_tpot_is_neither_good_nor_bad(
    run: Run, slo: str
) -> None:
    result = run(hundred(output_tokens=None), slo)

    goodput = result.goodput
    assert goodput is not None
    assert (goodput.n, goodput.undetermined, goodput.untold) == (0, 100, 100)
    assert (goodput.share, goodput.good_per_s) == (None, None)
    assert result.missed(0.95) == result.untold(0.95) == ["all"]
    text = load_text(summarise_load(result))
    assert "0 of 0 good, – (0.0% to 100.0%), goodput –/s" in text
    assert "100 requests cannot be judged" in text


def test_what_was_not_counted_is_bad_once_it_breaks_another_limit(run: Run) -> None:
    goodput = run(hundred(output_tokens=None), "ttft_s<40ms tpot_s<30ms").goodput

    assert goodput is not None
    assert (goodput.n, goodput.missed, goodput.untold) == (100, {"ttft_s": 100}, 0)


def test_a_few_that_nobody_counted_decide_nothing(run: Run) -> None:
    readings = hundred()
    readings[0:6:2] = [request(n, output_tokens=None) for n in range(3)]

    goodput = run(readings, "tpot_s<30ms").goodput

    assert goodput is not None
    assert (goodput.n, goodput.good, goodput.untold) == (97, 97, 3)
    assert goodput.holds(0.97) is True
    assert goodput.holds(0.98) is None
    assert goodput.good_per_s is None


def test_an_answer_in_one_piece_has_no_gap_to_be_late(run: Run) -> None:
    whole = request(0, output_tokens=None, last_token_ns=51 * MS)

    goodput = run([whole, tokens(0, ())], "tpot_s<30ms itl_s<30ms").goodput

    assert goodput is not None
    assert (goodput.n, goodput.good) == (1, 1)


def test_tokens_that_nobody_counted_are_no_rate(run: Run) -> None:
    result = run([*hundred(), request(100, output_tokens=None)])

    assert result.tokens_per_s is None
    assert summarise_load(result)["tokens"]["output"] is None
    assert "101 done, – tokens/s out" in load_text(summarise_load(result))


def test_of_a_class_whose_prompts_are_not_all_counted_there_is_no_mean(
    run: Run,
) -> None:
    mixed = [request(n, class_name="chat", prompt_tokens=None) for n in range(2)]

    summary = summarise_load(run(mixed))

    assert summary["classes"]["chat"]["tokens"]["prompt"] is None
    (line,) = (e for e in load_text(summary).splitlines() if e.startswith("chat"))
    assert line.split()[1:5] == ["ms", "2", "0", "–"]


def test_without_a_final_sample_the_seconds_are_put_together(run: Run) -> None:
    seconds = [
        sample(final=False, span_ns=10**9, cpu_s=0.1, recv_lag_p99_ns=None),
        sample(final=False, span_ns=10**9, cpu_s=0.3, recv_lag_p99_ns=5),
    ]

    together = run([*hundred(), *seconds]).sample

    assert together is not None
    assert (together.span_ns, together.sends) == (2 * 10**9, 200)
    assert together.cpu_s == pytest.approx(0.4)
    assert together.recv_lag_p99_ns == 5


def test_the_summary_has_every_number_and_names_the_weak(run: Run) -> None:
    found = summarise_load(run([*hundred(), sample()], "ttft_s<0.5"))

    assert found["ttft_s"]["weak"] == ["p95", "p99"]
    assert found["weak"]["ttft_s"] == ["p95", "p99"]
    assert found["ttft_from_intended_s"] == found["ttft_s"]
    assert found["ttft_from_send_s"]["ci95"]["mean"] == pytest.approx([0.05, 0.05])
    assert found["slo"]["share"] == 1
    assert found["client"]["verdict"] == "OK"
    assert found["client"]["stamps"] == "kernel"
    assert found["client"]["cpu"] == pytest.approx(0.1)


def test_people_read_it_in_eighty_columns(run: Run) -> None:
    failed = request(200, failure="http_5xx", detail="500 " + "x" * 200)
    text = load_text(summarise_load(run([*hundred(), failed, sample()], "ttft_s<0.5")))

    assert "100 done" in text
    assert "1 × http_5xx: 500 xxx" in text
    assert "client kept up · raw, kernel stamps" in text
    table = [line for line in text.splitlines() if line.startswith(("TTFT", "ITL"))]
    assert all(len(line) <= 80 for line in table)


def test_nothing_at_all_is_no_failure(run: Run) -> None:
    result = run([])

    assert result.span_s is None
    assert "–" in load_text(summarise_load(result))


def test_an_answer_that_came_at_once_has_a_tpot_of_zero(run: Run) -> None:
    at_once = request(0, last_token_ns=51 * MS)

    result = run([at_once, tokens(0, [0] * 10), sample()])

    tpot = result.latencies["tpot_s"].quantiles
    assert (tpot.n, tpot.mean) == (1, 0)


def rate_event(at_ms: int, **asked: Any) -> LoadEvent:
    return LoadEvent(source=RUN, t_ns=at_ms * MS, kind=LoadKind.RATE, **asked)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"rate_per_s": 10.0}], "asked 10.0/s, sent 10.0/s"),
        ([{"rate_per_s": 9.0}], "asked 9.00/s, 10.0/s with this seed, sent"),
        (
            [{"rate_per_s": 5.0}, {"rate_per_s": 20.0}],
            "(5.00 to 20.0 over time), 10.0/s with this",
        ),
        (
            [{"rate_per_s": 5.0}, {"rate_per_s": 20.0, "changed": True}],
            "(5.00 to 20.0, changed during the run), 10.0/s with this",
        ),
        ([{"users": 4}], "closed loop, sent 9.85/s"),
        (
            [{"users": 4}, {"users": 8, "changed": True}, {"users": 2}],
            "2 to 8 users, changed during the run, sent 9.85/s",
        ),
    ],
    ids=["as drawn", "drawn", "by time", "by hand", "users", "users by hand"],
)
def test_who_changed_the_load_is_said(
    run: Run, events: list[dict[str, Any]], said: str
) -> None:
    told = [rate_event(n * 1000, **asked) for n, asked in enumerate(events)]

    assert said in load_text(summarise_load(run([*told, *hundred(), sample()])))


def test_users_who_all_ask_at_once_have_a_rate_over_the_whole_run(run: Run) -> None:
    at_once = [request(n, intended_ns=0, sent_ns=n) for n in range(4)]

    rate = run([rate_event(0, users=4), *at_once, sample()]).rate

    assert rate.scheduled is None
    assert rate.achieved == pytest.approx(4 / 0.552)
