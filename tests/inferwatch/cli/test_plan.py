"""``inferwatch plan``: what it answers, and what it says of senseless flags."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from inferwatch.cli.main import inferwatch
from inferwatch.errors import InferwatchError
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.roofline import IMPOSSIBLE

WIDE = {"COLUMNS": "160", "NO_COLOR": "1"}


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit status, and what was printed or said of a mistake."""
    done = CliRunner().invoke(
        inferwatch, ["plan", *words], standalone_mode=False, env=env or WIDE
    )
    if isinstance(done.exception, InferwatchError):
        return done.exception.exit_status, str(done.exception)
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.output


def asked(*words: str) -> Any:
    status, text = run(*words, "--json")
    assert status == 0, text
    return json.loads(text)


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200"])
@pytest.mark.parametrize(
    ("model", "tp"), [("llama-3-8b", "1"), ("llama-3-70b", "4"), ("llama-3-405b", "16")]
)
def test_four_questions_are_answered(model: str, tp: str, gpu: str) -> None:
    _, text = run("--model", model, "--gpu", gpu, "--tp", tp, "--batch", "8")

    answers = dict(re.findall(r"^  (\S.*?) {2,}(.+)$", text, re.MULTILINE))
    assert answers["fits"] == "yes"
    assert answers["bound by"] == "memory"
    assert answers["limited by"] == "KV memory"
    assert int(answers["requests that fit (B_max)"].replace(",", "")) >= 8
    assert re.fullmatch(r"[\d.]+ ms", answers["TPOT floor, this batch"])
    assert re.fullmatch(r"[\d.]+ m?s", answers["TTFT floor, alone"])
    assert "communication between\nGPUs, the host and the queue are excluded" in text


def test_heads_that_cannot_be_shared_out_evenly_are_refused() -> None:
    status, text = run("--model", "llama-3-8b", "--gpu", "H100", "--tp", "3")

    assert status == 2
    assert "32 attention heads" in text
    assert text.endswith("1, 2, 4, 8, 16, 32 would do")


def test_more_stages_than_layers_are_refused() -> None:
    status, text = run("--model", "llama-3-8b", "--gpu", "H100", "--pp", "2,33")

    assert (status, text) == (2, "--pp 33: the model has but 32 layers")


def test_columns_are_all_that_was_asked_for() -> None:
    found = asked(
        *("--model", "8b", "--gpu", "A100,H200", "--gpu", "h200", "--tp", "1,2"),
        *("--kv-dtype", "auto", "--kv-dtype", "fp8", "--quantization", "none,fp8"),
    )

    columns = [
        (each["gpu"], each["tensor_parallel"], each["weight_bits"], each["kv_bits"])
        for each in found["plans"]
    ]
    assert columns[0] == ("A100 SXM 80GB", 1, 16, 16)
    assert len(columns) == len(set(columns)) == 2 * 2 * 2 * 2


def test_json_says_in_bytes_and_seconds_what_the_table_says() -> None:
    found = asked(
        *("--model", "llama-3-70b", "--gpu", "H100", "--tp", "4", "--batch", "32"),
        *("--gpu-hour", "4", "--quantization", "fp8", "--storage-gbps", "5"),
    )

    (plan,) = found["plans"]
    assert found["parameters"] == 70_553_706_496
    assert plan["fits"] is True
    assert plan["tpot_floor_s"] == pytest.approx(0.0085, rel=0.02)
    assert plan["decode_tokens_per_s"] == pytest.approx(32 / plan["tpot_floor_s"])
    # what was sold for 0.62
    assert plan["price_per_million"] == pytest.approx(1.18, rel=0.02)
    assert plan["load_storage_floor_s"] == pytest.approx(
        plan["total_weight_bytes"] / 5e9
    )
    assert "communication between GPUs" in found["excluded"]


def test_a_narrow_terminal_gets_blocks_of_columns() -> None:
    words = ("--model", "8b", "--gpu", "A100,H100,H200")

    _, wide = run(*words)
    _, narrow = run(*words, env={"COLUMNS": "60"})

    assert wide.count("Does it fit?") == 1
    assert narrow.count("Does it fit?") > 1
    assert max(map(len, narrow.splitlines()[:-3])) <= 60
    # at the least one column, however narrow
    assert run(*words, env={"COLUMNS": "10"})[1].count("Does it fit?") == 3


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--measured-tpot", "7.1ms"), 1),
        (("--measured-tpot", "0.0071"), 1),
        (("--measured-tpot", "7100 us"), 1),
        (("--measured-tpot", "12ms"), 0),
        (("--measured-ttft", "45ms", "--prompt", "2048"), 1),
        (("--measured-ttft", "0.2s", "--prompt", "2048"), 0),
        (("--measured-tokens-per-s", "140"), 1),
        (("--measured-tokens-per-s", "7800", "--batch", "256"), 1),
        (("--measured-tokens-per-s", "100"), 0),
    ],
)
def test_what_beats_its_floor_is_impossible(
    words: tuple[str, ...], status: int
) -> None:
    found, text = run("--model", "llama-3-8b", "--gpu", "A100", *words)

    assert found == status
    assert (IMPOSSIBLE in text) == bool(status)
    assert ("impossible, 0." in text) == bool(status)


def test_what_a_claim_is_judged_under_is_named() -> None:
    words = ("--model", "llama-3-8b", "--gpu", "A100", "--quantization", "w8a16")
    claim = ("--prompt", "2048", "--measured-ttft", "60ms")

    _, text = run(*words, *claim)
    status, told = run(*words, *claim, "--json")

    assert re.search("computed in +bfloat16", text)
    assert "W8A8" in text
    assert "W8A8" not in run(*words)[1]
    assert "W8A8" not in run(*words[:-1], "w8a8", *claim)[1]
    assert status == 1
    (plan,) = json.loads(told)["plans"]
    assert plan["measured"][0]["judged_under"] == {
        "weight_bits": 8,
        "kv_bits": 16,
        "compute_dtype": "bfloat16",
        "decode_context_parallel_size": 1,
    }


@pytest.mark.parametrize(("gpus", "is_said"), [("8", False), ("16", True)])
def test_where_gpus_keep_the_same_kv_cache_the_judgement_says_so(
    gpus: str, is_said: bool
) -> None:
    words = ("405b", "--gpu", f"{gpus}xH100")
    claims = ("--measured-tpot", "9s"), ("--measured-curve", "1=9")

    said = [run(*words, *each)[1] for each in claims]

    assert [("without decode context parallel" in each) for each in said] == [
        is_said
    ] * 2


@pytest.mark.parametrize(
    ("method", "gpu", "floor_ms", "computes"),
    [
        ("int8", "A100", 47.6, "int8"),
        ("INT8", "A100", 47.6, "int8"),
        ("w8a8", "A100", 47.6, "int8"),
        ("w8a16", "A100", 95.2, "bfloat16"),
        # it has little hardware for integers
        ("int8", "B300", 13.2, "bfloat16"),
    ],
)
def test_int8_of_two_meanings_is_judged_by_the_faster(
    method: str, gpu: str, floor_ms: float, computes: str
) -> None:
    words = ("llama-3-8b", "--gpu", gpu, "--quantization", method, "--prompt", "2048")

    found = asked(*words)
    (plan,) = found["plans"]

    assert plan["ttft_floor_s"] == pytest.approx(floor_ms / 1e3, rel=0.01)
    assert plan["compute_dtype"] == computes
    assert bool(found["remarks"]) is (method.lower() == "int8")


def test_an_answer_that_grows_is_not_judged_as_if_it_were_whole() -> None:
    load = ("--batch", "128", "--prompt", "128", "--output", "3968")
    words = ("--model", "llama-3-8b", "--gpu", "H200", *load)

    assert run(*words, "--measured-tpot", "13ms")[0] == 0
    assert run(*words, "--measured-tpot", "10ms")[0] == 1
    assert run(*words, "--measured-tokens-per-s", "10000")[0] == 0
    assert run(*words, "--measured-tokens-per-s", "13000")[0] == 1


def test_a_measured_tpot_is_judged_with_speculation() -> None:
    words = ("--model", "llama-3-8b", "--gpu", "A100", "--measured-tpot", "4ms")

    assert run(*words)[0] == 1
    assert run(*words, "--acceptance", "0.7", "--k", "4")[0] == 0


def test_fit_is_a_check_where_it_is_asked_for() -> None:
    words = ("--model", "llama-3-70b", "--gpu", "H100", "--tp", "1,2")

    assert run(*words)[0] == 0
    assert run(*words, "--fail-if-not-fit")[0] == 1
    assert run(*words[:-1], "2", "--fail-if-not-fit")[0] == 0
    assert "no, " in run(*words)[1]


def test_models_are_read_from_files_folders_and_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps(PRESETS["qwen2.5-7b"])
    cached = tmp_path / "hub" / "models--Qwen--Qwen2.5-7B" / "snapshots" / "abc"
    for folder in (cached, tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)

    preset = asked("--model", "qwen2.5-7b", "--gpu", "L40S")
    for model in (
        str(tmp_path / "mine"),
        str(tmp_path / "mine" / "config.json"),
        "Qwen/Qwen2.5-7B",
    ):
        found = asked("--model", model, "--gpu", "L40S")

        assert found["plans"] == preset["plans"]


def test_files_that_are_not_what_their_configuration_makes_are_told(
    tmp_path: Path,
) -> None:
    config = dict(PRESETS["llama-3-8b"]) | {"num_hidden_layers": 1, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--model", str(tmp_path), "--gpu", "L4")
    weights = asked(*words)["plans"][0]["total_weight_bytes"]
    first, second = (tmp_path / f"model-{n}.safetensors" for n in (1, 2))

    assert asked(*words)["stored_weight_bytes"] is None
    assert "Its files hold" not in run(*words)[1]

    for path, size in ((first, weights // 2), (second, weights // 2 + 1000)):
        with path.open("wb") as file:
            file.truncate(size)

    assert asked(*words)["stored_weight_bytes"] == 2 * (weights // 2) + 1000
    assert "Its files hold" not in run(*words)[1]

    second.unlink()

    assert "Its files hold" in run(*words)[1]
    # of another format than the files have
    assert "Its files hold" not in run(*words, "--quantization", "fp8")[1]


def test_a_shape_needs_no_file() -> None:
    found = asked(
        *("--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8"),
        *("--ffn", "14336", "--vocab", "128256", "--gpu", "H200"),
    )

    assert found["parameters"] == 8_030_261_248
    assert found["plans"] == asked("--model", "llama-3-8b", "--gpu", "H200")["plans"]


def test_other_gpus_are_what_their_flags_say() -> None:
    found = asked(
        *("--model", "8b", "--gpu", "mine", "--peak-gbps", "2039"),
        *("--peak-tflops", "312", "--memory-gb", "80", "--overhead-gb", "4"),
        *("--memory-share", "1", "--context", "4096"),
    )

    (plan,) = found["plans"]
    (a100,) = asked("--model", "8b", "--gpu", "A100")["plans"]
    assert plan["tpot_floor_s"] == a100["tpot_floor_s"]
    assert plan["ttft_floor_s"] == a100["ttft_floor_s"]
    # 119 of 0.5 GB; these are of 0.5 GiB
    assert plan["max_requests"] == 111
    assert plan["overhead_is_estimate"] is False


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (("4xH100",), 4),
        (("4 x H100",), 4),
        (("H100x4",), 4),
        (("H100:4",), 4),
        (("4xH100", "--tp", "4"), 4),
        (("4xH100", "--pp", "2"), 2),
    ],
)
def test_several_gpus_may_be_written_as_a_factor(
    words: tuple[str, ...], ways: int
) -> None:
    (column,) = asked("--model", "llama-3-8b", "--gpu", *words)["plans"]

    assert column["gpu"] == "H100 SXM"
    assert column["tensor_parallel"] == ways


def test_a_model_needs_no_flag() -> None:
    assert asked("llama-3-8b", "--gpu", "H200") == asked(
        "--model", "llama-3-8b", "--gpu", "H200"
    )
    with pytest.raises(click.UsageError, match="give one model"):
        run("llama-3-8b", "--model", "8b", "--gpu", "H200")


def test_up_to_which_batch_speculation_helps_is_unknown_without_compute() -> None:
    words = ("8b", "--gpu", "own", "--memory-gb", "64", "--peak-gbps", "2000")
    drafts = ("--acceptance", "0.7", "--k", "4", "--context", "128", "--output", "64")

    (unknown,) = asked(*words, *drafts)["plans"]
    (known,) = asked(*words, *drafts, "--peak-tflops", "300")["plans"]

    assert unknown["speculation_helps_up_to_requests"] is None
    assert 1 < known["speculation_helps_up_to_requests"] < 1000
    assert "helps up to        –" in re.sub(" {9,}", " " * 8, run(*words, *drafts)[1])


def test_communication_is_an_estimate_beside_the_floor() -> None:
    """By hand: 2·126 all-reduces of 2·7/8 · 16,384 · 2 bytes over 450 GB/s."""
    words = ("llama-3-405b", "--gpu", "8xH100", "--quantization", "fp8")

    (usual,) = asked(*words)["plans"]
    (fast,) = asked(*words, "--call-latency", "2us")["plans"]
    text = run(*words)[1]

    sent = usual["communication"]
    assert (sent["link"], sent["calls"]) == ("NVLink", 252)
    assert sent["sending_s"] == pytest.approx(0.0321e-3, rel=0.01)
    assert sent["estimate_s"] == pytest.approx(2.55e-3, rel=0.01)
    assert fast["communication"]["estimate_s"] == pytest.approx(0.536e-3, rel=0.01)
    assert usual["tpot_floor_s"] == fast["tpot_floor_s"]
    assert usual["tpot_estimate_s"] == pytest.approx(
        usual["tpot_floor_s"] + 2.55e-3, 1e-3
    )
    assert re.search("TPOT with it +~17.8 ms", text)
    assert "communication of a step" not in run("8b", "--gpu", "H100")[1]


def test_heads_are_divided_or_on_several_gpus() -> None:
    assert re.search("KV heads +2 of 8 each", run("70b", "--gpu", "4xH100")[1])
    assert re.search("KV heads +each on 2 GPUs", run("70b", "--gpu", "16xH100")[1])
    assert "latent, on every GPU" in run("deepseek-v3", "--gpu", "8xH200")[1]
    assert "all" in run("8b", "--gpu", "H100")[1]


def test_ranks_of_a_mixture_share_its_experts() -> None:
    words = ("deepseek-v3", "--batch", "128", "--gpu", "8xH200")

    (whole,) = asked(*words, "--dp", "8", "--ep")["plans"]
    (one,) = asked(*words)["plans"]

    assert (whole["tensor_parallel"], whole["data_parallel"]) == (1, 8)
    # attention is whole on each rank, and latent vectors are of its own requests
    assert whole["weight_bytes"] > one["weight_bytes"]
    assert whole["kv_bytes"] == one["kv_bytes"] / 8
    assert whole["experts_touched"] == pytest.approx(1 - (1 - 8 / 256) ** 128)
    assert whole["communication"]["calls"] == 2 * 58


def test_beside_a_chunk_other_ranks_may_idle_as_beside_a_prompt_alone() -> None:
    words = ("deepseek-v3", "--gpu", "8xH200", "--dp", "8", "--ep", "--batch", "8")

    (plan,) = asked(*words, "--prompt", "8192", "--chunk", "8193")["plans"]

    beside, alone = plan["chunk_itl_floor_s"], plan["ttft_floor_s"]
    assert beside == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize("flag", [("--dp", "2"), ("--ep",)])
def test_a_dense_model_has_no_experts_to_share(flag: tuple[str, ...]) -> None:
    status, text = run("8b", "--gpu", "H100", *flag)

    assert status == 2
    assert "no experts to share" in text
    assert "plan for one" in text


def test_a_long_prompt_is_computed_in_chunks() -> None:
    words = ("8b", "--gpu", "A100", "--prompt", "8192", "--batch", "32")

    (whole,) = asked(*words)["plans"]
    (tiny,) = asked(*words, "--chunk", "64")["plans"]
    (full,) = asked(*words, "--chunk", "32")["plans"]

    assert whole["chunked_ttft_floor_s"] == whole["ttft_floor_s"]
    # 128 times 15.0 of 16.1 GB, as a chunk below the ridge point is bound by memory
    assert tiny["chunk_compute_bound_from_tokens"] > 64
    assert tiny["chunked_ttft_floor_s"] == pytest.approx(128 * 7.5e-3, rel=0.05)
    assert tiny["ttft_floor_s"] == whole["ttft_floor_s"]
    assert tiny["chunk_itl_floor_s"] < whole["chunk_itl_floor_s"]
    # all tokens of a step decode
    assert full["chunk_itl_floor_s"] is None
    (many,) = asked("8b", "--gpu", "A100", "--prompt", "20k", "--chunk", "1")["plans"]
    assert many["chunked_ttft_floor_s"] is None


def test_loading_tells_the_line_rate_from_that_of_copies() -> None:
    words = ("qwen2.5-7b", "--gpu", "A100")

    (plan,) = asked(*words)["plans"]

    assert plan["load_pcie_floor_s"] == pytest.approx(15.23e9 / 31.5e9, rel=0.01)
    assert plan["load_pcie_estimate_s"] == pytest.approx(0.57, rel=0.01)
    assert re.search(r"PCIe, GB/s of its lines +Gen4 31\.5", run(*words)[1])


def test_a_factor_that_other_flags_contradict_is_refused() -> None:
    wrong = {
        "--tp 2": "is 4 GPUs, but --tp 2 uses 2: leave it out",
        "--tp 2,4": "but --tp 2,4 uses 2 or 4: leave",
        "--tp 4 --pp 2": "but --tp 4 --pp 2 uses 8: leave",
        "--pp 3": "but --pp 3 does not divide them: leave",
        "--tp 4 --dp 2": "but --tp 4 --dp 2 uses 8: leave",
    }
    for more, said in wrong.items():
        status, text = run("--model", "llama-3-8b", "--gpu", "4xH100", *more.split())

        assert status == 2
        assert said in " ".join(text.split())


def test_no_gpu_at_all_is_refused_by_the_flag_that_was_typed() -> None:
    status, text = run("--model", "llama-3-8b", "--gpu", "0xH100")

    assert status == 2
    assert "--gpu 0xH100: give how many GPUs, such as 2xH100" in text


def test_bits_may_be_given_where_no_method_says_them(tmp_path: Path) -> None:
    config = {**PRESETS["llama-3-8b"], "quantization_config": {"quant_method": "gguf"}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    status, text = run("--model", str(tmp_path), "--gpu", "L4")
    found = asked("--model", str(tmp_path), "--gpu", "L4", "--weight-bits", "4.85")

    assert status == 2
    assert "--weight-bits" in text
    assert found["plans"][0]["weight_bits"] == 4.85


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpu", "H200"), "say which model"),
        (
            ("--layers", "3", "--gpu", "H200"),
            "--hidden, --heads, --vocab, --ffn missing",
        ),
        (("--model", "8b"), "say which GPU"),
        (("--model", "8b", "--gpu", ","), "say which GPU"),
        (("--model", "8b", "--gpu", "H300"), "Did you mean H200"),
        (("--model", "lama-3-8b", "--gpu", "H200"), "Did you mean llama-3-8b?"),
        (("--model", "8b", "--layers", "3", "--gpu", "H200"), "--layers describe"),
        (("--model", "8b", "--gpu", "H200", "--kv-dtype", "fp7"), "fp7"),
        (("--model", "8b", "--gpu", "H200", "--dtype", "int3"), "int3"),
        (("--model", "8b", "--gpu", "H200", "--quantization", "magic"), "magic"),
        (
            ("--model", "8b", "--gpu", "H200", "--prompt", "9", "--context", "8"),
            "leaves no room",
        ),
        (
            (
                *("--model", "8b", "--gpu", "H200"),
                *("--prompt", "9", "--output", "9", "--context", "12"),
            ),
            "do not fit into --context 12",
        ),
        (
            ("--model", "8b", "--gpu", "H200", "--measured-tpot", "soon"),
            "such as 15ms",
        ),
        (("--model", "8b", "--gpu", "H200", "--measured-ttft", "0"), "such as 15ms"),
        (("8b", "--gpu", "H200", "--quantize-head"), "goes with --quantization"),
        (("8b", "--gpu", "H200", "--call-latency", "soon"), "such as 15ms"),
        (("8b", "--gpu", "H200", "--k", "4"), "--acceptance and --k go together"),
        (("8b", "--gpu", "H200", "--draft-cost", "0.1"), "go with --acceptance, --k"),
        (
            (
                *("8b", "--gpu", "H200", "--acceptance", "0.7", "--k", "4"),
                *("--draft-cost", "0.1", "--draft-model", "8b"),
            ),
            "give one of both",
        ),
        (
            (
                *("8b", "--gpu", "H200", "--acceptance", "0.7", "--k", "4"),
                *("--draft-model", "9c"),
            ),
            "--draft-model 9c: no such",
        ),
        (
            (
                *("--model", "8b", "--gpu", "H200"),
                *("--weight-bits", "4", "--quantization", "fp8"),
            ),
            "one of both",
        ),
        (
            (
                "--model",
                "8b",
                "--gpu",
                "H200",
                "--tp",
                ",".join(map(str, range(1, 30))),
            ),
            "29 columns",
        ),
    ],
)
def test_what_makes_no_sense_is_said(words: tuple[str, ...], said: str) -> None:
    status, text = run(*words)

    assert status == 2
    assert said in text


@pytest.mark.parametrize("content", ["{", "[]", "\xff", "[" * 100_000])
def test_files_that_are_no_configuration_are_told(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, "latin-1")

    status, text = run("--model", str(file), "--gpu", "H200")

    assert status == 2
    assert str(file) in text


def test_of_a_family_that_is_not_known_the_next_step_is_told(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PRESETS["llama-3-8b"], "model_type": "grok"}))

    status, text = run("--model", str(file), "--gpu", "H200")

    assert status == 2
    assert "family grok" in text
    assert "give its shape: --layers, --hidden, --heads" in text


def test_a_folder_without_a_configuration_is_told(tmp_path: Path) -> None:
    status, text = run("--model", str(tmp_path), "--gpu", "H200")

    assert status == 2
    assert "no config.json" in text


@pytest.mark.parametrize("value", ["0", "-3", "nan", "1e99", "x"])
@pytest.mark.parametrize("flag", ["--batch", "--tp", "--peak-gbps", "--layers"])
def test_numbers_that_are_none_are_refused(flag: str, value: str) -> None:
    done = CliRunner().invoke(inferwatch, ["plan", flag, value])

    assert done.exit_code == 2
    assert "above 0" in done.output


def test_help_stands_under_headings_and_shows_examples() -> None:
    text = CliRunner().invoke(inferwatch, ["plan", "--help"]).output

    assert "Model without a file:" in text
    assert "inferwatch plan llama-3-8b --gpu H200 --batch 64" in text
    assert "--fail-if-not-fit" in text


# The conclusion.


def users_of(*words: str) -> list[int]:
    return [each["max_requests"] for each in asked(*words)["plans"]]


def test_it_says_first_how_many_fit_and_what_fp8_would_bring() -> None:
    words = ("--model", "llama-3-8b", "--gpu", "H100", "--context", "32768")
    formats = ("--quantization", "none,fp8", "--kv-dtype", "auto,fp8")
    users, cache, weights, both = users_of(*words, *formats)

    _, text = run(*words)

    said = " ".join(text.split("\n\n")[0].split())
    assert said.startswith(
        f"{users} users of 32,768 tokens fit on H100 SXM; with FP8 weights {weights}, "
        f"an FP8 cache {cache}, FP8 both {both}; prompts limit output to "
    )
    assert said.endswith(" tokens/s, which an FP8 cache does not help.")
    assert asked(*words)["conclusion"] == said.removesuffix(".")


def test_of_several_machines_it_says_on_which_output_is_limited() -> None:
    _, text = run("--model", "llama-3-70b", "--gpu", "4xH100,8xH100")

    assert "; on 4 × H100 SXM, prompts limit output to " in " ".join(text.split())


def test_a_batch_that_does_not_fit_is_said_first() -> None:
    _, text = run("--model", "llama-3-8b", "--gpu", "L4", "--batch", "64")
    _, unfit = run("--model", "llama-3-405b", "--gpu", "L40S")

    (users,) = users_of("--model", "llama-3-8b", "--gpu", "L4", "--batch", "64")
    assert text.startswith(f"64 users do not fit on L4: {users} do; with ")
    assert unfit.startswith("No user fits on L40S: 775 GB per GPU short.\n")


def test_columns_that_were_asked_for_are_compared_with_the_first() -> None:
    words = ("--model", "llama-3-70b", "--gpu", "H100", "--tp", "2,4")
    users, more = users_of(*words)

    _, text = run(*words)

    said = " ".join(text.split("\n\n")[0].split())
    assert f"{users} users of 4,096 tokens fit on 2 × H100 SXM; " in said
    assert (
        f"; on 4 × H100 SXM {more}; on 2 × H100 SXM, decode is bound by memory, at "
    ) in said
    assert "FP8" not in said


def test_a_format_that_lets_fewer_fit_is_not_named() -> None:
    """Its weights are in 4 bits already."""
    _, text = run("--model", "gpt-oss-20b", "--gpu", "L40S")

    assert "FP8 weights" not in text.split("\n\n")[0]


# What would make it fit.


def test_70b_on_two_a100_is_told_the_four_ways_that_guides_name() -> None:
    words = ("70b", "--gpu", "A100", "--tp", "2", "--batch", "32", "--gpu-hour", "2.5")

    status, text = run(*words, env={"COLUMNS": "80", "NO_COLOR": "1"})

    said = text.partition("It\n  would fit with:\n")[2].splitlines()[:6]
    rows = [re.split(" {2,}", each.strip()) for each in said]
    assert status == 0
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("FP8 weights", "may change the output", "$5.00/h"),
        ("4.25-bit weights", "may change the output", "$5.00/h"),
        ("8 requests at a time", "fewer users", "$5.00/h"),
        ("1,072 tokens each", "shorter conversations", "$5.00/h"),
        ("2 × H200", "other GPUs, at their price", "–"),
        ("4 × A100 SXM 80GB", "costs 2 more GPUs", "$10.00/h"),
    ]
    assert max(map(len, said)) <= 80


@pytest.mark.parametrize(
    "words",
    [
        ("70b", "--gpu", "A100", "--tp", "2", "--batch", "32"),
        ("70b", "--gpu", "A100", "--tp", "2", "--batch", "16"),
        ("8b", "--gpu", "L4", "--batch", "9"),
        ("gpt-oss-20b", "--gpu", "RTX 4090", "--batch", "64", "--context", "8k"),
        ("70b", "--gpu", "2xA100", "--batch", "64"),
        ("70b", "--gpu", "4xH100", "--pp", "2", "--batch", "300"),
        ("405b", "--gpu", "4xH100", "--quantization", "fp8", "--batch", "8"),
        ("8b", "--gpu", "A100", "--memory-gb", "40", "--batch", "200"),
        ("8b", "--gpu", "own", "--peak-gbps", "500", "--memory-gb", "20"),
    ],
    ids=" ".join,
)
def test_a_remedy_fed_back_by_its_flags_fits(words: tuple[str, ...]) -> None:
    (plan,) = asked(*words)["plans"]

    assert plan["remedies"]
    for each in plan["remedies"]:
        flags = shlex.split(each["flags"])
        given = zip(words[1::2], words[2::2], strict=True)
        kept = [part for pair in given if pair[0] not in flags for part in pair]
        (fixed,) = asked(words[0], *kept, *flags)["plans"]
        assert fixed["fits"], each
        assert fixed["left_bytes"] == pytest.approx(each["left_bytes"])
        assert fixed["tpot_floor_s"] == pytest.approx(each["tpot_floor_s"])
        assert fixed["gpu"] == each["gpu"]


def test_columns_that_fit_have_no_remedies() -> None:
    (plan,) = asked("8b", "--gpu", "H100")["plans"]

    assert plan["remedies"] == []
    assert "would fit with" not in run("8b", "--gpu", "H100")[1]


def test_what_nothing_here_makes_fit_is_said() -> None:
    _, text = run("405b", "--gpu", "T4", "--batch", "4")

    assert "No single change to formats, requests or GPUs makes it fit." in text
