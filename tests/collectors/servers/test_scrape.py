"""The life of a server as a scraper tells it."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    EngineSettings,
    MetricsPage,
    ModelConfig,
    ServerInfo,
)
from collectors.http.server import Server
from collectors.servers import scrape
from collectors.servers.scrape import ServerScraper
from tests.collectors.http_server import (
    SCRAPES,
    VLLM,
    Answer,
    Serving,
    as_json,
    serving,
    whole,
)

MODELS = (
    '{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm",'
    '"root":"/models/tiny","max_model_len":1024}]}'
)
ANSWERS: dict[str, Answer] = {
    "/metrics": VLLM,
    "/version": as_json('{"version":"0.32.0"}'),
    "/v1/models": as_json(MODELS),
}
Kind = TypeVar("Kind", bound=AnyReading)


class Watching:
    """What a scraper has told so far."""

    def __init__(self) -> None:
        self.readings: list[AnyReading] = []
        self._news = asyncio.Condition()

    async def watch(self, scraper: ServerScraper) -> None:
        async for batch in scraper.batches():
            async with self._news:
                self.readings.extend(batch)
                self._news.notify_all()

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.readings if isinstance(each, kind)]

    def changes(self) -> list[Contact]:
        """What was told of contact, without what only tells another round trip."""
        told = self.of(Contact)
        return [
            each
            for before, each in zip([None, *told], told, strict=False)
            if before is None
            or each.restarted
            or (each.answers, each.why) != (before.answers, before.why)
        ]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until that is so."""
        async with asyncio.timeout(20), self._news:
            await self._news.wait_for(lambda: bool(true()))

    async def samples(self, count: int) -> list[EngineSample]:
        await self.until(lambda: len(self.of(EngineSample)) >= count)
        return self.of(EngineSample)


@asynccontextmanager
async def watching(
    server: Serving, every_s: float = 0.01, path: str = ""
) -> AsyncIterator[Watching]:
    """Somebody who watches the server, often."""
    scraper = ServerScraper(
        SessionClock(), Server(url=server.url + path, every_s=every_s)
    )
    watching = Watching()
    task = asyncio.create_task(watching.watch(scraper))
    try:
        yield watching
    finally:
        await scraper.close()
        async with asyncio.timeout(20):
            await task


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits as long as a person would."""
    monkeypatch.setattr(scrape, "SPREAD_S", 0.0)
    monkeypatch.setattr(scrape, "LONGEST_PAUSE_S", 0.05)


def bumped(text: str, name: str, by: int) -> str:
    """The same text with a higher number of one counter."""
    lines = []
    for line in text.split("\n"):
        if line.startswith(name):
            head, _, number = line.rpartition(" ")
            lines.append(f"{head} {float(number) + by}")
        else:
            lines.append(line)
    return "\n".join(lines)


async def test_a_server_says_what_it_is_and_what_it_counts() -> None:
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
    (info,) = seen.of(ServerInfo)
    assert (info.family, info.version, info.models) == ("vllm", "0.32.0", ["tiny"])
    assert info.max_model_len == 1024
    assert info.settings["root"] == "/models/tiny"
    assert info.started_wall_ns == 1_795_194_987_550_000_000
    assert info.url == server.url
    assert info.source == server.url.removeprefix("http://")
    first = seen.of(EngineSample)[0]
    assert (first.output_tokens, first.finished["length"]) == (852, 24)
    (contact,) = seen.changes()
    assert contact.answers
    assert contact.why is None
    assert contact.round_trip_ns is not None


@pytest.mark.parametrize(
    ("text", "lines"), [(VLLM, 711), ("tgi_queue_size 3\n", 1)], ids=["vLLM", "unknown"]
)
async def test_the_whole_page_is_kept_whoever_serves_it(text: str, lines: int) -> None:
    async with serving(ANSWERS | {"/metrics": text}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(MetricsPage))
    page = seen.of(MetricsPage)[0]
    assert (page.whole, len(page.lines)) == (True, lines)
    assert page.source == server.url.removeprefix("http://")


async def test_a_sample_lies_in_the_middle_of_its_exchange() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(whole(VLLM, headers="connection: close\r\n"))

    async with serving(ANSWERS | {"/metrics": slowly}) as server:
        async with watching(server) as seen:
            (sample, *_) = await seen.samples(1)
    assert sample.uncertainty_ns >= 50_000_000
    assert sample.t_ns > sample.uncertainty_ns


async def test_the_second_sample_comes_soon_after_the_first() -> None:
    async with serving(ANSWERS) as server:
        async with watching(server, every_s=60) as seen:
            first, second = await seen.samples(2)
    assert 0.2e9 < second.t_ns - first.t_ns < 2e9


async def test_counters_that_go_back_are_a_restart() -> None:
    multi = "\n".join(
        line for line in VLLM.split("\n") if not line.startswith("process_")
    )
    later = bumped(multi, "vllm:generation_tokens_total", 100)
    async with serving(ANSWERS | {"/metrics": later}) as server:
        async with watching(server) as seen:
            await seen.samples(1)
            server.answers["/metrics"] = multi
            await seen.until(lambda: any(each.restarted for each in seen.of(Contact)))
    assert [each.restarted for each in seen.changes()] == [False, True]
    after = seen.readings.index(seen.changes()[1])
    next_sample = next(
        each for each in seen.readings[after:] if isinstance(each, EngineSample)
    )
    assert next_sample.output_tokens == 852


async def test_another_start_time_is_a_restart_though_counters_went_on() -> None:
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
        server.answers["/metrics"] = bumped(VLLM, "process_start_time_seconds", 100)
        await seen.until(lambda: len(seen.of(ServerInfo)) == 2)
    assert [each.restarted for each in seen.changes()] == [False, True]
    begun = [each.started_wall_ns or 0 for each in seen.of(ServerInfo)]
    assert begun[1] - begun[0] == 100_000_000_000


async def test_a_server_that_goes_is_lost_and_found_again() -> None:
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.samples(1)
        await server.stop()
        await seen.until(lambda: not seen.of(Contact)[-1].answers)
        told = len(seen.of(EngineSample))
        await server.start()
        await seen.samples(told + 1)
    assert [each.answers for each in seen.changes()] == [True, False, True]
    assert seen.changes()[1].why == "nothing listens there"


async def test_a_server_without_metrics_answers_and_is_not_measured() -> None:
    models = MODELS.replace("vllm", "somebody")
    async with serving({"/v1/models": as_json(models)}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(ServerInfo))
    (info,) = seen.of(ServerInfo)
    assert (info.family, info.models) == ("openai", ["tiny"])
    assert seen.of(Contact)[-1].answers
    assert not seen.of(EngineSample)


async def test_a_page_is_no_metrics() -> None:
    page = whole("<!doctype html><p>hello", kind="text/html")
    async with serving({"/metrics": page, "/v1/models": page}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(Contact))
    assert seen.of(Contact)[0].why == "a web page answers there, no engine"
    assert not seen.of(EngineSample)


async def test_half_a_text_is_no_sample_and_told() -> None:
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.samples(1)
        server.answers["/metrics"] = VLLM[:30_000]
        await seen.until(lambda: seen.of(Contact)[-1].why)
        server.answers["/metrics"] = VLLM
        await seen.until(lambda: len(seen.changes()) == 3)
    told = [(each.answers, each.why) for each in seen.changes()]
    why = "the answer broke off in the middle"
    assert told == [(True, None), (True, why), (True, None)]
    assert {each.output_tokens for each in seen.of(EngineSample)} == {852}


async def test_what_is_left_out_is_told() -> None:
    wrong = VLLM.replace(
        "vllm:generation_tokens_total{", "vllm:generation_tokens_total{{"
    )
    async with serving(ANSWERS | {"/metrics": wrong}) as server:
        async with watching(server) as seen:
            (sample, *_) = await seen.samples(1)
    assert sample.output_tokens is None
    assert seen.of(Contact)[0].why == "left out: lines that are not metrics"


async def test_a_slow_server_is_slow_and_then_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(scrape, "SLOW_S", 0.1)
    monkeypatch.setattr(scrape, "GIVE_UP_S", 0.4)
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
        server.answers["/metrics"] = never
        await seen.until(lambda: not seen.of(Contact)[-1].answers)
    told = [(each.answers, each.why) for each in seen.changes()]
    assert told == [
        (True, None),
        (True, "slow: no answer for 0.1 s"),
        (False, "no answer in 0.4 s"),
    ]


async def test_an_answer_that_comes_late_is_a_sample_of_a_slow_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(whole(VLLM, headers="connection: close\r\n"))

    monkeypatch.setattr(scrape, "SLOW_S", 0.1)
    async with serving(ANSWERS | {"/metrics": late}) as server:
        async with watching(server) as seen:
            await seen.samples(1)
    assert seen.of(Contact)[-1].why == "slow: it takes over 0.1 s"


async def test_a_proxy_without_a_server_behind_it_is_no_answer() -> None:
    async with serving({"/metrics": whole("", "502 Bad Gateway")}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(Contact))
    assert not seen.of(Contact)[0].answers


async def test_a_key_that_is_missing_is_told() -> None:
    async with serving({"/metrics": whole("", "401 Unauthorized")}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(Contact))
    (contact, *_) = seen.of(Contact)
    assert contact.answers
    assert "--header" in (contact.why or "")


async def test_a_server_whose_models_want_a_key_is_read_by_its_metrics() -> None:
    async with serving({"/metrics": VLLM}) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
    assert seen.of(ServerInfo)[0].models == ["tiny"]


async def test_a_server_under_a_prefix_is_asked_there() -> None:
    answers = {f"/team/a{path}": answer for path, answer in ANSWERS.items()}
    async with serving(answers) as server:
        async with watching(server, path="/team/a/") as seen:
            await seen.until(lambda: seen.of(ServerInfo))
    assert all(path.startswith("/team/a/") for path in server.asked)


async def test_llamacpp_without_metrics_tells_how_many_run() -> None:
    models = MODELS.replace("vllm", "llamacpp")
    off = '{"error":{"message":"Start it with `--metrics`"}}'
    answers: dict[str, Answer] = {
        "/metrics": whole(off, "501 Not Implemented", "application/json"),
        "/v1/models": as_json(models),
        "/slots": as_json('[{"is_processing":true},{"is_processing":false}]'),
    }
    async with serving(answers) as server:
        async with watching(server) as seen:
            (sample, *_) = await seen.samples(1)
    assert sample.running == 1
    assert sample.output_tokens is None
    assert seen.of(ServerInfo)[0].advice == [
        "Its metrics are off: start it with --metrics."
    ]


async def test_sglang_is_asked_in_its_older_way_only_if_need_be() -> None:
    text = SCRAPES.joinpath("sglang_docs.txt").read_text("utf-8")
    answers: dict[str, Answer] = {
        "/metrics": text,
        "/get_server_info": as_json('{"version":"0.4.1"}'),
    }
    async with serving(answers) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
    assert seen.of(ServerInfo)[0].version == "0.4.1"
    server.asked.clear()
    async with serving(answers | {"/server_info": as_json("{}")}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(ServerInfo))
    assert "/get_server_info" not in server.asked


async def test_metrics_that_come_later_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrape, "METRICS_AGAIN_S", 0.1)
    monkeypatch.setattr(scrape, "ALIVE_EVERY_S", 0.05)
    async with serving({"/v1/models": as_json(MODELS)}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(ServerInfo))
            server.answers |= ANSWERS
            await seen.until(lambda: len(seen.of(ServerInfo)) == 2)
    without, with_metrics = seen.of(ServerInfo)
    assert "disable-log-stats" in without.advice[0]
    assert "INFERWATCH_PROBE" in with_metrics.advice[0]


async def test_several_servers_behind_one_address_are_told_and_not_mixed() -> None:
    other = bumped(VLLM, "process_start_time_seconds", 100).replace(" 852.0", " 999.0")

    async def in_turn(writer: asyncio.StreamWriter) -> None:
        text = (VLLM, other)[server.asked.count("/metrics") % 2]
        writer.write(whole(text, headers="connection: close\r\n"))

    async with serving(ANSWERS | {"/metrics": in_turn}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(Contact)[-1:] and seen.of(Contact)[-1].why)
            told = len(seen.readings)
            await seen.samples(len(seen.of(EngineSample)) + 5)
    assert "several servers answer here in turn" in (seen.of(Contact)[-1].why or "")
    tokens = {
        each.output_tokens
        for each in seen.readings[told:]
        if isinstance(each, EngineSample)
    }
    assert len(tokens) == 1
    assert sum(each.restarted for each in seen.of(Contact)) == 1


async def test_a_server_whose_clock_is_wrong_says_so() -> None:
    dated = whole(VLLM, headers="date: Thu, 01 Jan 2015 00:00:00 GMT\r\n")
    async with serving({"/metrics": dated}) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(ServerInfo))
    assert "behind ours" in seen.of(ServerInfo)[0].settings["clock"]


async def test_a_shorter_round_trip_is_told() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(whole(VLLM, headers="connection: close\r\n"))

    async with serving({"/metrics": slowly}) as server, watching(server) as seen:
        await seen.samples(1)
        server.answers["/metrics"] = VLLM
        await seen.until(lambda: (seen.of(Contact)[-1].round_trip_ns or 1e9) < 0.1e9)
    assert len(seen.changes()) == 1


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b'"\\ud800"', b"1e999", b""])
async def test_no_nonsense_in_place_of_json_hurts(body: bytes) -> None:
    bad = whole(body, kind="application/json")
    answers: dict[str, Answer] = {"/v1/models": bad, "/version": bad}
    async with serving(answers | {"/metrics": VLLM}) as server:
        async with watching(server) as seen:
            await seen.until(lambda: seen.of(ServerInfo))
    async with serving(answers) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(Contact))
    assert seen.of(Contact)[0].why == "something else answers there, no engine"


async def test_each_of_many_servers_is_asked_at_its_own_time() -> None:
    clock = SessionClock()
    scrapers = [ServerScraper(clock, Server(url="h:1", every_s=100)) for _ in range(64)]
    due = sorted(each._next_pause(fresh=False) for each in scrapers)
    gaps = [after - before for before, after in pairwise(due)]
    assert max(gaps) < 30
    assert due[-1] - due[0] > 50


async def test_a_server_tells_what_it_is_set_to_and_its_model_is_read_where_it_is(
    tmp_path: Path,
) -> None:
    config = {"hidden_size": 8, "torch_dtype": "bfloat16", "hf_token": "secret"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    models = MODELS.replace("/models/tiny", str(tmp_path))
    async with (
        serving(ANSWERS | {"/v1/models": as_json(models)}) as server,
        watching(server) as seen,
    ):
        await seen.until(lambda: seen.of(ModelConfig))

    told = seen.of(EngineSettings)[0].settings
    assert told["block_size"] == 32
    assert told["enable_prefix_caching"] is True
    assert told["kv_cache_dtype"] == "auto"
    assert told["max_model_len"] == 1024
    model = seen.of(ModelConfig)[0]
    assert json.loads(model.config) == {"hidden_size": 8, "torch_dtype": "bfloat16"}
    assert (model.dtype, model.kv_dtype, model.model) == (
        "bfloat16",
        "bfloat16",
        tmp_path.name,
    )


async def test_a_pipe_in_the_directory_that_a_server_names_holds_nobody_up(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "config.json")
    models = MODELS.replace("/models/tiny", str(tmp_path))
    async with (
        serving(ANSWERS | {"/v1/models": as_json(models)}) as server,
        watching(server) as seen,
    ):
        await seen.until(lambda: seen.of(EngineSettings))

    assert seen.of(ModelConfig) == []


async def test_a_configuration_is_read_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by: set[int] = set()

    def read(*_: object, **_more: object) -> None:
        read_by.add(threading.get_ident())

    monkeypatch.setattr(scrape, "local_config", read)
    models = MODELS.replace("/models/tiny", str(tmp_path))
    async with (
        serving(ANSWERS | {"/v1/models": as_json(models)}) as server,
        watching(server) as seen,
    ):
        await seen.until(lambda: seen.of(EngineSettings))

    assert read_by.isdisjoint({threading.get_ident()})
    assert len(read_by) == 1


async def test_a_directory_that_is_not_here_is_only_a_name() -> None:
    async with serving(ANSWERS) as server, watching(server) as seen:
        await seen.until(lambda: seen.of(EngineSettings))

    assert seen.of(ModelConfig) == []
