"""``inferwatch baseline`` says what single requests took, and is found again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import httpx
import pytest

from embedded_engine.engine.launch import Engine
from inferwatch.cli.main import main
from inferwatch.errors import UsageError
from inferwatch.metrics.configuration import Configuration
from inferwatch.record.replay.reference import read_reference, reference_place
from inferwatch.record.sessions.sessions import find

COMMAND = [sys.executable, "-P", "-m", "inferwatch.cli", "baseline"]
Done = subprocess.CompletedProcess[str]
Baseline = Callable[..., Done]


@pytest.fixture
def baseline(here: Callable[..., Done]) -> Baseline:
    return partial(here, "baseline")


@pytest.mark.timing
def test_it_says_what_the_server_did_to_the_millisecond(
    server: str, baseline: Baseline
) -> None:
    model = "ttft=0.05,itl=0.012"
    done = baseline(
        server, "--model", model, "--output-tokens", "9", "--repeats", "5", "--json"
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    log = httpx.get(f"{server}/log", trust_env=False).json()
    mine = [each for each in log if each["body"]["model"] == model]
    assert [each["prompt_tokens"] for each in found["lengths"]] == [32, 512, 2048]
    assert len(mine) == 3 * (5 + 2)
    assert len({tuple(each["prompt"]) for each in mine}) == len(mine)  # nothing cached
    mine.sort(key=lambda each: each["received_ns"])
    pairs = pairwise(mine)  # one at a time
    assert all(a["sent_ns"][-1] <= b["received_ns"] for a, b in pairs)
    for length in found["lengths"]:
        sent = [t for t in mine if len(t["prompt"]) == length["prompt_tokens"]][2:]
        ttfts = [(each["sent_ns"][0] - each["received_ns"]) / 1e9 for each in sent]
        tpots = [(e["sent_ns"][-1] - e["sent_ns"][0]) / 8e9 for e in sent]
        assert (length["sent"], length["failed"]) == (5, 0)
        assert length["ttft_s"]["n"] == 5
        assert 0 <= length["ttft_s"]["median"] - median(ttfts) < 0.002
        assert length["tpot_s"]["median"] == pytest.approx(median(tpots), abs=0.001)
        whole_s = length["ttft_s"]["median"] + 8 * length["tpot_s"]["median"]
        assert length["output_tokens_per_s"]["median"] == pytest.approx(
            9 / whole_s, rel=0.02
        )


@pytest.mark.process
def test_it_is_a_session_that_is_found_by_its_model(
    server: str, baseline: Baseline, tmp_path: Path
) -> None:
    model = "ttft=0.001,itl=0.001"
    done = baseline(
        server,
        *("--model", model, "--prompt-tokens", "16,64", "--output-tokens", "4"),
        *("--repeats", "2"),
    )

    assert done.returncode == 0, done.stderr
    assert "4 requests each with prompts of 16, 64 tokens" in done.stderr
    path = tmp_path / "sessions.db"
    row = find(path, "last")
    assert (row.command, row.name) == ("baseline", f"baseline {model}")
    assert row.client_requests == 4  # what does not count is not in it
    same = Configuration(model=model, version="2")
    place = reference_place(path, "baseline", wall_ns=0, shown=same)
    assert place.session.id == row.id
    assert place.title == "s1, baseline of this model, otherwise set up"
    assert read_reference(path, place).snapshot.now_ns > 0
    other = Configuration(model="other")
    with pytest.raises(UsageError, match="no baseline of other"):
        reference_place(path, "baseline", wall_ns=0, shown=other)


class Busy(BaseHTTPRequestHandler):
    """Serves one model, and has three requests of others."""

    def do_GET(self) -> None:
        models = {"data": [{"id": "m", "max_model_len": 600}]}
        text = "vllm:num_requests_running 3.0\nvllm:num_requests_waiting 1.0\n"
        self.send_response(200)
        self.end_headers()
        known = json.dumps(models) if "models" in self.path else text
        self.wfile.write(known.encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def busy_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "serving other traffic: 3 requests running, 1 waiting. Add --anyway"),
        (("--prompt-tokens", "700"), "m takes 600 tokens"),
        (("--prompt-tokens", "a,b"), "write it as 32,512,2k"),
        (("--prompt-tokens", "0"), "1 to 1,000,000"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_sent(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    with busy_server() as url, pytest.raises(SystemExit) as ended:
        main(["baseline", url, *flags])

    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.engine
@pytest.mark.xdist_group("shared engine")
def test_of_real_vllm_its_configuration_is_known(
    engine: Engine, loud_model: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(*COMMAND, str(engine.url), "--db", str(tmp_path / "b.db"), "--json"),
            *("--repeats", "3", "--output-tokens", "8"),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        env=dict(os.environ),
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    configuration = found["configuration"]
    assert configuration["model"] == str(loud_model)
    assert configuration["settings"]["max_num_seqs"] > 0
    assert found["kv_bytes_per_token"] > 0
    for length in found["lengths"]:
        assert length["counted_tokens"] == length["prompt_tokens"]
        assert length["ttft_s"]["median"] > length["tpot_s"]["median"] > 0
    longest, shortest = found["lengths"][-1], found["lengths"][0]
    assert longest["ttft_s"]["p25"] > shortest["ttft_s"]["p25"]
    row = find(tmp_path / "b.db", "last")
    assert set(found["tags"]) == set(row.tags.split())
    place = reference_place(
        tmp_path / "b.db",
        "baseline",
        wall_ns=0,
        shown=Configuration(
            model=configuration["model"],
            version=configuration["version"],
            gpus=tuple(configuration["gpus"]),
            settings=configuration["settings"],
        ),
    )
    assert place.title.endswith("baseline of this configuration")
