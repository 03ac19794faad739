"""Texts of metrics, good and bad."""

import math
from itertools import chain

import pytest

from collectors.contract.readings import Histogram
from collectors.servers import exposition
from collectors.servers.exposition import (
    Exposition,
    ExpositionError,
    ScrapedPage,
    series_names,
)
from collectors.servers.families.sglang import SGLANG
from collectors.servers.families.vllm import VLLM as FAMILY
from tests.collectors.http_server import VLLM

RUNNING = 'vllm:num_requests_running{engine="0",model_name="m"}'
TOKENS = 'vllm:generation_tokens_total{engine="0",model_name="m"}'


def read(*lines: str) -> ScrapedPage:
    return Exposition(FAMILY).read("\n".join(lines) + "\n")


def histogram(*counts: object, total: str = "1.5", count: str = "") -> list[str]:
    """The lines of a TTFT histogram with bounds 0.1, 0.2, … and infinity."""
    name = "vllm:time_to_first_token_seconds"
    bounds = [f"{0.1 * (1 + at):.1f}" for at in range(len(counts) - 1)] + ["+Inf"]
    lines = [
        f'{name}_bucket{{engine="0",le="{bound}"}} {number}'
        for bound, number in zip(bounds, counts, strict=True)
    ]
    lines.append(f'{name}_sum{{engine="0"}} {total}')
    return [*lines, f'{name}_count{{engine="0"}} {count or counts[-1]}']


def test_a_second_text_is_read_with_what_is_known_from_the_first() -> None:
    reader = Exposition(FAMILY)
    reader.read(f"{RUNNING} 1\n{TOKENS} 10\n")
    (sample,) = reader.read(f"{RUNNING} 3\n{TOKENS} 25\n").samples
    assert (sample.running, sample.output_tokens) == (3, 25)


def test_what_is_no_longer_there_is_unknown() -> None:
    reader = Exposition(FAMILY)
    reader.read(f"{RUNNING} 1\n{TOKENS} 10\n")
    (sample,) = reader.read(f"{TOKENS} 10\n").samples
    assert sample.running is None


def test_lines_may_come_in_another_order() -> None:
    reader = Exposition(FAMILY)
    reader.read(f"{RUNNING} 1\n{TOKENS} 10\n")
    (sample,) = reader.read(f"{TOKENS} 12\n{RUNNING} 1\n# new\n").samples
    assert (sample.running, sample.output_tokens) == (1, 12)


def test_a_rank_that_is_no_longer_there_gives_no_sample() -> None:
    reader = Exposition(FAMILY)
    other = TOKENS.replace('"0"', '"1"')
    assert len(reader.read(f"{TOKENS} 10\n{other} 11\n").samples) == 2
    assert [each.rank for each in reader.read(f"{TOKENS} 10\n").samples] == ["0"]


def test_each_rank_and_model_has_its_own_sample() -> None:
    scraped = read(
        f"{TOKENS} 1",
        'vllm:generation_tokens_total{engine="1",model_name="m"} 2',
        'vllm:generation_tokens_total{engine="0",model_name="n"} 3',
    )
    assert [
        (each.rank, each.model, each.output_tokens) for each in scraped.samples
    ] == [
        ("0", "m", 1),
        ("1", "m", 2),
        ("0", "n", 3),
    ]


def test_series_of_several_processes_are_one() -> None:
    (sample,) = read(
        'vllm:generation_tokens_total{engine="0",pid="7"} 10',
        'vllm:generation_tokens_total{engine="0",pid="8"} 20',
        'vllm:num_requests_running{engine="0",pid="7"} 4',
        'vllm:num_requests_running{engine="0",pid="8"} 4',
    ).samples
    assert (sample.output_tokens, sample.running) == (30, 4)


def test_a_series_that_is_there_twice_counts_once() -> None:
    (sample,) = read(f"{TOKENS} 10", f"{TOKENS} 12").samples
    assert sample.output_tokens == 12


@pytest.mark.parametrize("line", [
    'vllm:generation_tokens_total{engine="0"}\t7',
    'vllm:generation_tokens_total{engine="0"} 7 1395066363000',
    'vllm:generation_tokens_total{engine="0"}   7',
    'vllm:generation_tokens_total{engine="0",} 7',
    'vllm:generation_tokens_total{ engine = "0" } 7',
    "vllm:generation_tokens_total 7",
    "vllm:generation_tokens_total 7 1395066363000",
    'vllm:generation_tokens_total{engine="0"} 7\r',
    'vllm:generation_tokens{engine="0"} 7',
])  # fmt: skip
def test_a_line_may_be_written_in_many_ways(line: str) -> None:
    reader = Exposition(FAMILY)
    for _ in range(2):
        (sample,) = reader.read(line + "\n").samples
        assert (sample.rank, sample.output_tokens) == ("0", 7)


def test_times_at_the_ends_of_lines_do_not_make_new_series() -> None:
    reader = Exposition(FAMILY)
    for at in range(10):
        reader.read(f"{TOKENS} {at} {1395066363000 + at}\n")
    assert len(reader._series) == 1


@pytest.mark.parametrize(
    "number", ["NaN", "+Inf", "-Inf", "-1", "1_000", "x", "", "1e300"]
)
def test_a_number_that_cannot_be_is_unknown(number: str) -> None:
    scraped = read(f"{TOKENS} {number}", f"{RUNNING} 1")
    (sample,) = scraped.samples
    assert sample.output_tokens is None
    assert sample.running == 1


def test_a_number_that_cannot_be_is_told() -> None:
    reader = Exposition(FAMILY)
    for _ in range(3):
        assert reader.read(f"{TOKENS} NaN\n").wrong == ["numbers that cannot be"]


def test_what_is_no_metric_is_told_and_the_rest_is_read() -> None:
    text = f'vllm:generation_tokens_total{{engine="0 9\n}}{{\n{RUNNING} 1\n'
    reader = Exposition(FAMILY)
    for _ in range(3):
        scraped = reader.read(text)
        assert scraped.samples[0].running == 1
        assert scraped.wrong == ["lines that are not metrics"]


def test_what_a_label_holds_is_taken_as_it_is() -> None:
    (sample,) = read(
        'vllm:num_requests_running{engine="0",model_name="a\\"} 7 \\\\\\n\x1b[31m"} 1'
    ).samples
    assert sample.model == 'a"} 7 \\\n\x1b[31m'
    assert sample.running == 1


def test_a_long_label_is_cut() -> None:
    (sample,) = read(
        f'vllm:num_requests_running{{model_name="{"x" * 9999}"}} 1'
    ).samples
    assert len(sample.model or "") == exposition.LONGEST_LABEL


def test_a_text_that_breaks_off_is_none() -> None:
    with pytest.raises(ExpositionError):
        Exposition(FAMILY).read(VLLM[:20_000])


def test_a_histogram_is_cumulative_with_one_count_more_than_bounds() -> None:
    (sample,) = read(*histogram(1, 3, 4)).samples
    assert sample.histograms == {
        "ttft_s": Histogram(bounds=[0.1, 0.2], counts=[1, 3, 4], sum=1.5)
    }


def test_the_count_stands_in_for_a_missing_infinite_bucket() -> None:
    lines = [each for each in histogram(1, 3, 4) if "Inf" not in each]
    (sample,) = read(*lines).samples
    assert sample.histograms["ttft_s"].counts == [1, 3, 4]


@pytest.mark.parametrize("lines", [
    histogram(3, 1, 4),
    histogram(1, "NaN", 4),
    histogram(1, 3, "1e300"),
    histogram(1, 3, 4, total="NaN"),
    [each for each in histogram(1, 3, 4) if "_sum" not in each],
    [each for each in histogram(1, 3, 4) if "Inf" not in each and "count" not in each],
    [*histogram(1, 3, 4), 'vllm:time_to_first_token_seconds_bucket{engine="0"} 3'],
])  # fmt: skip
def test_a_histogram_that_contradicts_itself_is_left_out_and_told(
    lines: list[str],
) -> None:
    scraped = read(*lines, f"{RUNNING} 1")
    assert not any(each.histograms for each in scraped.samples)
    assert "vllm:time_to_first_token_seconds, which contradicts itself" in scraped.wrong


def test_what_only_the_whole_server_has_goes_to_its_only_rank() -> None:
    (sample,) = read(
        f"{TOKENS} 1", 'vllm:admission_rejections_total{model_name="m",reason="full"} 2'
    ).samples
    assert sample.rank == "0"
    assert sample.others == {"admission_rejections{full}": 2, "refused{queue full}": 2}


def test_sglang_counts_them_by_route_and_status() -> None:
    def counted(route: str, status: int, count: int) -> str:
        labels = f'endpoint="{route}",status_code="{status}",method="POST"'
        return f"sglang:http_responses_total{{{labels}}} {count}.0\n"

    page = counted("/generate", 400, 2) + counted("/v1/completions", 200, 9)
    (sample,) = Exposition(SGLANG).read(page + counted("/metrics", 500, 3)).samples

    assert sample.others == {"refused{/generate 400}": 2}


def test_refused_requests_are_those_of_routes_to_a_model() -> None:
    def counted(route: str, status: str, count: int, method: str = "POST") -> str:
        labels = f'handler="{route}",method="{method}",status="{status}"'
        return f"http_requests_total{{{labels}}} {count}.0"

    (sample,) = read(
        f"{TOKENS} 1",
        counted("/v1/completions", "2xx", 90),
        counted("/v1/completions", "4xx", 3),
        counted("/v1/completions", "4xx", 2, "GET"),
        counted("/v1/chat/completions", "5xx", 1),
        counted("/health", "5xx", 7),
        counted("/v1/models", "4xx", 4, "GET"),
        counted("/v1/models", "4xx", 4),
        counted("/v1/load_lora_adapter", "4xx", 8),
        counted("none", "4xx", 9),
    ).samples

    assert sample.others == {
        "refused{/v1/completions 4xx}": 3,
        "refused{/v1/chat/completions 5xx}": 1,
    }
    assert "http_requests_total" not in {*chain(*series_names(FAMILY).values())}


def test_there_is_an_end_to_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST_SERIES", 10)
    many = [
        f'vllm:corrupted_requests_total{{engine="0",x="{at}"}} 1' for at in range(50)
    ]
    reader = Exposition(FAMILY)
    scraped = reader.read("\n".join([f"{RUNNING} 1", *many]) + "\n")
    assert scraped.samples[0].running == 1
    assert scraped.wrong == ["more than 10 series"]
    assert len(reader._series) == 10


def test_series_that_come_and_go_do_not_crowd_out_what_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposition, "MOST_SERIES", 10)
    reader = Exposition(FAMILY)
    for at in range(50):
        passing = TOKENS.replace('"m"', f'"m",x="{at}"')
        text = f"{passing} 1\n{RUNNING} {at}\n"
        (sample,) = reader.read(text).samples
        assert sample.running == at


def test_there_is_an_end_to_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST_RANKS", 3)
    scraped = read(
        *(f'vllm:num_requests_running{{engine="{at}"}} 1' for at in range(9))
    )
    assert len(scraped.samples) == 3
    assert scraped.wrong == ["more than 3 ranks"]


def test_there_is_an_end_to_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST_PARTS", 5)
    scraped = read(*histogram(*range(50)), 'vllm:num_requests_running{engine="0"} 1')
    assert scraped.samples[0].running == 1
    assert "more than 5 parts of ttft_s" in scraped.wrong


def test_nothing_is_no_sample() -> None:
    assert Exposition(FAMILY).read("").samples == []
    assert read("# a remark", "other_metric 3").samples == []


def test_a_start_time_is_found() -> None:
    assert Exposition(FAMILY).read(VLLM).started_s == 1_795_194_987.55
    assert math.isclose(read("process_start_time_seconds 1.7e9").started_s or 0, 1.7e9)


@pytest.mark.parametrize("began", ["1.795e12", "1e300", "Inf"])
def test_a_start_time_that_is_none_is_unknown_and_told(began: str) -> None:
    scraped = read(f"process_start_time_seconds {began}", f"{RUNNING} 1")
    assert scraped.started_s is None
    assert any("cannot be" in each for each in scraped.wrong)
    assert scraped.samples[0].running == 1


def test_acceptance_takes_one_query_of_a_fleet_of_any_size() -> None:
    drafts = series_names(FAMILY)["drafts"]

    assert {each.removesuffix("_total") for each in drafts} == {
        "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens",
        "vllm:spec_decode_num_accepted_tokens",
    }


LORA = (
    "vllm:lora_requests_info{{"
    'max_lora="2",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}'
)


def test_adapters_are_those_of_the_labels_that_applied_last() -> None:
    reader = Exposition(FAMILY)
    lines = [f"{TOKENS} 10", LORA.format("a,b", "b,c", 1.7e9)]
    (before,) = reader.read("\n".join([*lines, ""])).samples
    lines += [LORA.format("a", "", 1.7e9 + 3), LORA.format("", "", 1.7e9 + 2)]
    (after,) = reader.read("\n".join([*lines, ""])).samples
    lines.append(LORA.format("d", "", 3.4e9))
    (summed,) = reader.read("\n".join([*lines, ""])).samples

    assert before.others == {"adapters": 2, "adapters_waiting": 1}
    assert after.others == {"adapters": 1, "adapters_waiting": 0}
    assert summed.others == {}  # times of several API servers, added up
