"""What differs from a reference: told by side, and no more than can be compared."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from collectors.contract.readings import EngineInfo, ServerInfo, Vantage
from inferwatch.metrics.changes import ChangeSide, changes, verdict
from inferwatch.metrics.requests.latencies import TTFT
from inferwatch.metrics.series.window import Latency, Quantiles, Window
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health, Verdict

FLOW = Flow(
    arrivals_per_s=4.0,
    finished_per_s=4.0,
    prompt_tokens_p50=200.0,
    output_tokens_per_s=400.0,
    prefix_hit_rate=0.4,
    finished=240,
)


def server(**fields: Any) -> ServerInfo:
    facts: Mapping[str, Any] = {"version": "0.32.0", "started_wall_ns": 5, **fields}
    return ServerInfo(t_ns=0, name="a", family="vllm", **facts)


def picture(
    *,
    flow: Flow = FLOW,
    ttft_s: float | None = 0.1,
    vantage: Vantage = Vantage.SCRAPE,
    info: ServerInfo | None = None,
) -> Snapshot:
    ttft = Latency(metric="ttft_s", vantage=vantage, quantiles=Quantiles(mean=ttft_s))
    return Snapshot(
        now_ns=0,
        window=Window.MINUTE,
        covered_ns=60,
        verdict=Verdict(health=Health.HEALTHY, sentence=""),
        flow=flow,
        latencies=(ttft,),
        servers=(ServerState(source="a", info=info or server()),),
    )


def test_more_and_longer_prompts_are_the_traffic() -> None:
    now = picture(
        flow=replace(FLOW, arrivals_per_s=8.0, prompt_tokens_p50=620.0), ttft_s=0.3
    )

    assert verdict(changes(now, picture())) == (
        "the traffic differs: req/s ×2.0, prompt ×3.1; the server is the same "
        "process, set up as it was; the result differs: TTFT ×3.0"
    )


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (server(version="0.33.0"), "the server is set up otherwise: version"),
        (server(settings={"cache_dtype": "fp8"}), "is the same process, set up as"),
        (server(started_wall_ns=9), "the server was started anew since, set up as"),
        (server(started_wall_ns=None), "the server is set up as it was"),
    ],
    ids=["another version", "a setting only one tells", "restarted", "not known"],
)
def test_another_server_is_told_with_the_same_traffic(
    info: ServerInfo, said: str
) -> None:
    sentence = verdict(changes(picture(info=info), picture()))

    assert "the traffic is as it was" in sentence
    assert said in sentence


def test_a_clock_that_is_further_off_is_no_other_setting() -> None:
    """It is told with what a server is set to, and moves by itself."""
    now, then = (server(settings={"clock": f"{n} s behind ours"}) for n in (6, 5))

    assert changes(picture(info=now), picture(info=then)).settings == ()


def test_shares_differ_by_points_and_not_by_ratio() -> None:
    fewer = picture(flow=replace(FLOW, prefix_hit_rate=0.02))
    slightly = picture(flow=replace(FLOW, prefix_hit_rate=0.37))

    assert "hits -38 points" in verdict(changes(fewer, picture()))
    assert not changes(slightly, picture()).large(ChangeSide.TRAFFIC)


def test_what_another_vantage_measured_is_shown_but_not_compared() -> None:
    compared = changes(picture(ttft_s=0.9), picture(vantage=Vantage.FRONTEND))

    (ttft,) = [each for each in compared.numbers if each.number is TTFT]
    assert (ttft.now, ttft.then, ttft.ratio) == (0.9, 0.1, None)
    assert not compared.large(ChangeSide.RESULT)


def test_what_is_not_known_of_both_is_no_change() -> None:
    nothing = replace(picture(flow=Flow(), ttft_s=None), servers=())

    sentence = verdict(changes(picture(), nothing))

    assert sentence == (
        "the traffic cannot be compared; how the server is set up is not known of "
        "both; the result cannot be compared"
    )


def test_none_of_something_is_told_without_a_ratio() -> None:
    now = picture(flow=replace(FLOW, arrivals_per_s=0.0))

    assert "req/s none now" in verdict(changes(now, picture()))


def test_engines_of_ours_are_compared_by_what_their_probes_told() -> None:
    def engine(pid: int, **fields: Any) -> Snapshot:
        info = EngineInfo(t_ns=pid, pid=pid, model="m", vllm_version="0.32.0", **fields)
        return replace(picture(), servers=(), engines=(info,))

    compared = changes(engine(1, max_num_seqs=64), engine(2, max_num_seqs=32))

    assert [(each.name, each.now, each.then) for each in compared.settings] == [
        ("max_num_seqs", "64", "32")
    ]
    assert compared.restarted
