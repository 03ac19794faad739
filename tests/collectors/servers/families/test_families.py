"""What each family's metrics become, by scrapes of its own: see scrapes/README.md."""

import json
from itertools import pairwise

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.readings import EngineSample
from collectors.servers.exposition import Exposition, series_names
from collectors.servers.families import FAMILIES, by_answers, by_metrics
from collectors.servers.families.family import Answers, flag_of
from collectors.servers.families.llamacpp import LLAMACPP
from collectors.servers.families.sglang import SGLANG
from collectors.servers.families.vllm import VLLM, finer_buckets
from collectors.servers.metrics_page import PageKeeper, read_layout
from inferwatch.metrics.servers.every_metric import every_metric
from tests.collectors.http_server import SCRAPES

LATENCIES = {"ttft_s", "itl_s", "e2el_s", "queue_s", "prefill_s", "decode_s"}
BLOCK_LIVES = {"block_lifetime_s", "block_idle_s", "block_reuse_gap_s"}
SIZES = {"inference_s", "prompt_tokens", "output_tokens", "step_tokens"}


def samples(name: str) -> list[EngineSample]:
    """What a recorded scrape says."""
    text = SCRAPES.joinpath(f"{name}.txt").read_text("utf-8")
    family = by_metrics(text)
    assert family is not None
    scraped = Exposition(family).read(text)
    assert not scraped.wrong
    return scraped.samples


@pytest.mark.parametrize(
    "version", ["0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.20.0", "0.33.0"]
)
def test_all_spellings_of_vllm_say_the_same(version: str) -> None:
    (sample,) = samples(f"vllm_{version}")
    assert (sample.rank, sample.model) == ("0", "tiny")
    assert (sample.running, sample.waiting, sample.kv_usage) == (3, 2, 0.25)
    assert (sample.prompt_tokens, sample.output_tokens) == (640, 160)
    assert (sample.prefix_queries, sample.prefix_hits) == (640, 400)
    assert sample.preemptions == 1
    assert sample.finished == {"stop": 10, "length": 10, "abort": 0}
    tpot = set() if version in {"0.8.5", "0.9.2", "0.10.2"} else {"tpot_s"}
    assert set(sample.histograms) == LATENCIES | SIZES | tpot
    assert sample.histograms["ttft_s"].counts[-1] == 20
    assert sample.histograms["itl_s"].counts[-1] == 140
    assert sample.histograms["output_tokens"].sum == 160


def test_a_real_vllm_says_what_it_did() -> None:
    (sample,) = samples("vllm_0.32.0")
    assert (sample.prompt_tokens, sample.output_tokens) == (1682, 852)
    assert sum(sample.finished.values()) == 24
    itl = sample.histograms["itl_s"]
    assert (itl.bounds[0], itl.counts[0], itl.counts[-1]) == (0.01, 827, 828)
    assert itl.sum == pytest.approx(3.9962529630004155)
    assert sample.others["prompt_tokens_by_source{local_cache_hit}"] == 1056


def test_two_api_servers_of_vllm_count_together() -> None:
    (sample,) = samples("vllm_0.32.0_two_api_servers")
    assert (sample.rank, sample.running) == ("0", 0)
    assert (sample.prompt_tokens, sample.output_tokens) == (80, 160)
    assert sample.histograms["e2el_s"].counts[-1] == 8


def test_ranks_of_vllm_are_told_apart() -> None:
    one, two = samples("vllm_0.15.1_dp2")
    assert (one.rank, two.rank) == ("0", "1")
    assert (one.output_tokens, two.output_tokens) == (160, 320)


def test_sglang_as_its_documentation_shows_it() -> None:
    (sample,) = samples("sglang_docs")
    assert sample.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (sample.running, sample.waiting, sample.kv_usage) == (162, 2826, 0.28)
    assert (sample.prompt_tokens, sample.output_tokens) == (8128902, 7557572)
    assert sample.prefix_hits is None
    assert set(sample.histograms) == {"ttft_s", "e2el_s"}
    assert sample.histograms["ttft_s"].counts[-1] == 11008
    assert sample.finished == {}


@pytest.mark.parametrize("version", ["0.5.5", "0.5.23"])
def test_ranks_of_sglang_queue_and_its_server_counts(version: str) -> None:
    one, two, server = samples(f"sglang_{version}_dp2")
    assert [each.rank for each in (one, two, server)] == ["0", "1", "all"]
    assert (one.running, one.waiting, one.kv_usage) == (3, 0, 0.25)
    assert (two.running, two.waiting, two.kv_usage) == (4, 2, 0.35)
    assert (one.output_tokens, server.output_tokens) == (None, 160)
    assert (server.prefix_queries, server.prefix_hits) == (640, 400)
    assert server.finished == {"finished": 20}
    assert server.histograms["itl_s"].counts[-1] == 140


def sglang(**values: float) -> EngineSample:
    """Of one rank, as 0.5.23 labels it."""
    labels = '{dp_rank="0",engine_type="unified",model_name="tiny",tp_rank="0"}'
    told = {"num_running_reqs": 1.0, "token_usage": 0.9} | values
    text = "".join(f"sglang:{name}{labels} {value}\n" for name, value in told.items())
    (sample,) = Exposition(SGLANG).read(text).samples
    return sample


@pytest.mark.parametrize("pool", ["swa_token_usage", "mamba_usage"])
def test_the_fullest_pool_of_sglang_is_not_told_as_the_kv_cache(pool: str) -> None:
    hybrid = sglang(**{"full_token_usage": 0.4, pool: 0.9})

    assert hybrid.kv_usage is None
    assert hybrid.others == {"token_usage": 0.9, "full_token_usage": 0.4, pool: 0.9}


def test_the_only_pool_of_sglang_is_the_kv_cache() -> None:
    """Of pools that a model does not have, newer ones tell that nothing is used."""
    assert sglang().kv_usage == 0.9
    newer = sglang(full_token_usage=0.9, swa_token_usage=0, mamba_usage=0)
    assert newer.kv_usage == 0.9


def test_kv_transfers_of_sglang_are_told_as_gauges_and_as_histograms() -> None:
    """The latter since sgl-project/sglang#19009."""
    gauges = {"kv_transfer_speed_gb_s": 12.5, "kv_transfer_latency_ms": 40.0}
    sums = {f"{name}_{part}": 80.0 for name in gauges for part in ("sum", "count")}
    of_pools = {"token_usage": 0.9}

    assert sglang(**gauges).others == of_pools | gauges
    assert sglang(**sums).others == of_pools | sums


def test_a_real_llamacpp_says_what_it_does() -> None:
    (sample,) = samples("llamacpp_b11434")
    assert (sample.running, sample.waiting, sample.kv_usage) == (2, 1, None)
    assert (sample.prompt_tokens, sample.output_tokens) == (74, 80)
    assert (sample.prefix_queries, sample.prefix_hits) == (74, 41)
    assert sample.others["n_decode"] == 949
    assert not sample.histograms


def test_llamacpp_counts_what_its_cache_held_as_prompt() -> None:
    text = (
        "llamacpp:prompt_tokens_total 100\nllamacpp:prompt_tokens_cached_total 60\n"
        "llamacpp:tokens_predicted_total 1.23457e+06\nllamacpp:requests_processing 2\n"
        "llamacpp:requests_deferred 1\nllamacpp:n_decode_total 7\n"
    )
    (sample,) = Exposition(LLAMACPP).read(text).samples
    assert (sample.prompt_tokens, sample.output_tokens) == (160, 1_234_570)
    assert (sample.prefix_queries, sample.prefix_hits) == (160, 60)
    assert (sample.running, sample.waiting, sample.kv_usage) == (2, 1, None)
    assert sample.histograms == {}
    assert sample.others == {"n_decode": 7}


def test_what_an_older_llamacpp_does_not_tell_is_unknown() -> None:
    text = "llamacpp:prompt_tokens_total 100\nllamacpp:kv_cache_usage_ratio 0.5\n"
    (sample,) = Exposition(LLAMACPP).read(text).samples
    assert (sample.prompt_tokens, sample.kv_usage) == (100, 0.5)
    assert (sample.prefix_hits, sample.running, sample.output_tokens) == (None,) * 3


def test_every_key_is_one_of_a_sample() -> None:
    fields = set(msgspec.structs.asdict(EngineSample(t_ns=0)))
    histograms = LATENCIES | SIZES | {"tpot_s"} | BLOCK_LIVES
    for family in FAMILIES:
        assert fields >= family.gauges.keys() | family.counters.keys()
        assert family.histograms.keys() <= histograms


OF_NO_FAMILY = ("python_", "process_", "http_")
"""Metrics of the process and its web framework, whatever it serves."""
ON_THE_PAGE_ALONE = {
    "vllm:request_max_num_generation_tokens",  # repeats request_generation_tokens
    "vllm:watermark_requests_total",
    "sglang:time_per_output_token_seconds",  # running averages: see sglang.py
}
"""What a family exposes and no field has: the screen of all metrics shows it."""


@pytest.mark.parametrize("name", [each.stem for each in sorted(SCRAPES.glob("*.txt"))])
def test_every_metric_of_a_recorded_scrape_has_a_place(name: str) -> None:
    """A new one is to be named in its family, or listed above on purpose."""
    text = SCRAPES.joinpath(f"{name}.txt").read_text("utf-8")
    family = by_metrics(text)
    assert family is not None
    named = {each for names in series_names(family).values() for each in names}
    page = PageKeeper(name).take(text, 0)
    assert page is not None

    shown = every_metric([page])

    assert shown is not None
    exposed = {each.name for each in text_string_to_metric_families(text)}
    assert {each.name.removesuffix("_total") for each in shown.metrics} >= {
        each.removesuffix("_total") for each in exposed
    }
    unnamed = {
        each
        for each, metric in read_layout(page.lines).metrics.items()
        if not each.startswith(OF_NO_FAMILY)
        and not each.endswith("_created")
        and metric.series
        and not {each, f"{each}_total", f"{each}_count"} & named
    }
    assert unnamed <= ON_THE_PAGE_ALONE


MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64, "root": "/m"}]}


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
def test_a_server_without_metrics_is_known_by_its_models(owner: str) -> None:
    family = by_answers({"/v1/models": {"data": [{"id": "m", "owned_by": owner}]}})
    assert family is not None
    assert family.name == owner
    (advice,) = family.describe({}, None).advice
    assert "metrics" in advice


def test_a_server_of_nobody_we_know_is_openai_compatible() -> None:
    family = by_answers({"/v1/models": {"data": [{"id": "m", "owned_by": "me"}]}})
    assert family is not None
    assert family.name == "openai"


@pytest.mark.parametrize("models", [
    None, {}, [], "x", {"data": None}, {"data": {}}, {"data": [1, None, {}]},
    {"data": [{"id": 7, "owned_by": ["vllm"], "max_model_len": "x", "meta": 3}]},
    {"data": "\x1b"},
])  # fmt: skip
def test_no_nonsense_in_a_list_of_models_hurts(models: object) -> None:
    answers = {"/v1/models": models, "/version": models, "/props": models}
    by_answers(answers)
    for family in FAMILIES:
        assert family.describe(answers, {}).models == []


def test_vllm_tells_its_cache() -> None:
    labels = {"block_size": "16", "num_gpu_blocks": "257", "sliding_window": "None"}
    facts = VLLM.describe({"/version": {"version": "0.32.0"}, **models()}, labels)
    assert (facts.version, facts.max_model_len) == ("0.32.0", 64)
    assert (facts.num_kv_blocks, facts.kv_block_tokens) == (256, 16)
    assert facts.settings == {"block_size": "16", "root": "/m"}


def models() -> Answers:
    return {"/v1/models": MODELS}


def test_sglang_tells_its_cache_and_none_of_its_keys() -> None:
    info = {
        "version": "0.5.23",
        "page_size": 64,
        "max_total_num_tokens": 6400,
        "tp_size": 2,
        "api_key": "secret",
        "admin_api_key": "secret",
        "internal_states": [{"x": 1}],
    }
    facts = SGLANG.describe({"/server_info": info, **models()}, {})
    assert (facts.version, facts.num_kv_blocks, facts.kv_block_tokens) == (
        "0.5.23",
        100,
        64,
    )
    assert facts.settings["tp_size"] == "2"
    assert "secret" not in str(facts)


def test_llamacpp_tells_its_slots() -> None:
    props = {
        "total_slots": 4,
        "build_info": "b11434-abc",
        "default_generation_settings": {"n_ctx": 2048, "prompt": "secret"},
        "chat_template": "secret",
    }
    facts = LLAMACPP.describe({"/props": props}, {})
    assert (facts.version, facts.max_model_len) == ("b11434-abc", 2048)
    assert facts.settings == {"total_slots": "4"}


@pytest.mark.parametrize(("slots", "fields"), [
    ([{"is_processing": True}, {"is_processing": False}], {"running": 1}),
    ([], {}), ({}, {}), ([1], {}), ([{"is_processing": 7}], {}), ([{}], {}),
])  # fmt: skip
def test_slots_of_llamacpp_tell_how_many_run(
    slots: object, fields: dict[str, int]
) -> None:
    assert LLAMACPP.live is not None
    assert LLAMACPP.live[1](slots) == fields


def test_vllm_is_advised_to_publish_its_cache_where_it_could() -> None:
    def advice(answers: Answers) -> str:
        return " ".join(VLLM.describe(answers, {}).advice)

    assert "--otlp-traces-endpoint http://127.0.0.1:4318/v1/traces" in advice({})
    assert "--kv-events-config" not in advice({})
    assert "--kv-events-config" in advice({"/kv_event_sources": {}})
    assert "--kv-events-config" not in advice({"/kv_event_sources": {"0": {}}})


def test_narrower_buckets_are_advised_where_they_can_be_chosen() -> None:
    def advice(version: object) -> str:
        return " ".join(VLLM.describe({"/version": {"version": version}}, {}).advice)

    assert "--custom-histogram-buckets" in advice("0.32.0")
    assert "--custom-histogram-buckets" in advice("1.0.1rc2")
    for other in ("0.31.9", "nightly", "", None, 32, "9" * 400):
        assert "--custom-histogram-buckets" not in advice(other)


def test_with_the_buckets_advised_no_bracket_is_coarse() -> None:
    for bounds in json.loads(finer_buckets()).values():
        assert all(high <= 2 * low for low, high in pairwise(bounds))
        assert bounds == sorted(set(bounds))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None),
        ("True", True),
        ("False", False),
        ("16", 16),
        ("0.9", 0.9),
        ("inf", None),
        ("auto", "auto"),
    ],
)
def test_flags_are_read_as_python_writes_them(text: str, value: object) -> None:
    read = flag_of(text)

    assert read == value
    assert type(read) is type(value)
