"""A server, looked at before it is loaded."""

import socket
import tracemalloc
from contextlib import aclosing
from pathlib import Path

import pytest

from inferwatch.errors import SourceError, UsageError
from inferwatch.loadgen.exchange.transport import transport_for
from inferwatch.loadgen.plan.plan import Api, LoadPlan, TransportKind
from inferwatch.loadgen.prompts.tokenizer import Vocabulary
from inferwatch.loadgen.target_server import TargetServer, endpoint_in, sums, traffic
from tests.collectors.http_server import TWICE, Answer, packed_twice, serving, whole


@pytest.mark.parametrize(
    "written",
    [
        *("localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1"),
        *("localhost:8000/v1/chat/completions", "localhost:8000/v1/completions/"),
        "http://localhost:8000/v1/models",
    ],
)
def test_an_address_is_read_as_people_write_it(written: str) -> None:
    assert TargetServer.at(written, None, {}).url == "http://localhost:8000"


@pytest.mark.parametrize(
    "written",
    [
        *("ftp://x", "http://", "://", "http://[::1", "localhost:99999"),
        *("http://xn--a:80", f"http://{'a' * 64}:80"),
        *("localhost:port", "http://host/v1?key=secret", "http://a:b@host#c"),
    ],
)
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="is not the address"):
        TargetServer.at(written, None, {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, {"Authorization": "Basic bWU6cEBzcw=="}),
        ({"authorization": "Bearer x"}, {"authorization": "Bearer x"}),
    ],
)
def test_a_password_in_an_address_becomes_a_header(
    given: dict[str, str], said: dict[str, str]
) -> None:
    target = TargetServer.at("https://me:p%40ss@host:8000/v1", None, given)

    assert target.url == target.name == "https://host:8000"
    assert target.headers == said


async def test_it_tells_what_it_serves(truth_url: str) -> None:
    assert await TargetServer.at(truth_url, None, {}).models() == ["ttft=0.05,itl=0.02"]


async def test_a_socket_is_as_good(truth_uds: str) -> None:
    target = TargetServer.at("http://localhost", truth_uds, {})

    assert target.name == truth_uds
    assert await target.models()
    assert traffic(await target.counters()) == (0, 0)


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_no_proxy_hears_of_a_loopback_server_nor_of_its_key(
    name: str, truth_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"Authorization": "Bearer secret"}
    plan = LoadPlan(
        run_id="r", model="m", url=truth_url, headers=key, endpoint=Api.CHAT
    )
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        port = proxy.getsockname()[1]
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")

        await Vocabulary.learn(plan)
        await TargetServer.at(truth_url, None, key).models()

        with pytest.raises(BlockingIOError):  # nobody has called
            proxy.accept()


async def test_nobody_there_is_a_lost_source(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(SourceError, match="nothing answers at http://127"):
        await TargetServer.at(f"127.0.0.1:{port}", None, {}).models()
    with pytest.raises(SourceError, match="nothing answers at"):
        await TargetServer.at("http://x", str(tmp_path / "none"), {}).models()


async def test_bombs_in_place_of_answers_are_not_unpacked() -> None:
    bomb: Answer = whole(packed_twice(), headers=TWICE)
    paths = ("/v1/models", "/metrics", "/health", "/tokenize")
    async with serving(dict.fromkeys(paths, bomb)) as server:
        target = TargetServer.at(server.url, None, {})
        plan = LoadPlan(
            run_id="r", model="m", url=server.url, transport=TransportKind.HTTPX
        )
        tracemalloc.start()
        with pytest.raises(SourceError, match="does not say what it serves: it is pac"):
            await target.models()
        assert await target.longest("m") is None
        assert await target.counters() == {}
        assert not (await Vocabulary.learn(plan)).exact
        async with aclosing(transport_for(plan)) as transport:
            await transport.open()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert set(server.asked) == set(paths)
    assert most < 5_000_000


@pytest.mark.parametrize(
    ("written", "endpoint"),
    [
        ("localhost:8000/v1/chat/completions", "chat"),
        ("http://h/proxy/v1/completions/", "completions"),
        ("http://h:1/v1", None),
        ("h", None),
    ],
)
def test_an_address_may_say_what_is_asked_there(
    written: str, endpoint: str | None
) -> None:
    assert endpoint_in(written) == endpoint


@pytest.mark.parametrize("odd", ["NaN", "+Inf", "-Inf", "1e308", "x"])
def test_a_gauge_that_is_no_number_is_no_traffic(odd: str) -> None:
    name = "vllm:num_requests_running"
    text = f'{name}{{e="0"}} {odd}\n{name}{{e="1"}} {odd}\n{name}{{e="2"}} 2\n'

    running, waiting = traffic(sums(text.replace("1e308", "1e999")))

    assert (running, waiting) == (2, 0)


def test_samples_are_summed_over_their_labels() -> None:
    text = """# HELP vllm:num_requests_running Number
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b {c}"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting 4.0 1700000000
odd{x="1"} NaN
broken line
"""

    found = sums(text)

    assert found["vllm:num_requests_running"] == 3
    assert traffic(found) == (3, 4)
