"""What is told of an engine's configuration, and what never is."""

import json
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.about.engine_config import (
    engine_settings,
    model_config,
    plain,
)


class Config:
    """As transformers has them."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def to_dict(self) -> dict[str, Any]:
        return self.fields


def scheduler(text: object, whole: object = None, **fields: Any) -> SimpleNamespace:
    parts: dict[str, dict[str, Any]] = {}
    for path in names.SETTING_PATHS.values():
        part, _, field = path.partition(".")
        parts.setdefault(part, {})[field] = 7
    parts["model_config"] |= {
        "hf_text_config": text,
        "hf_config": whole,
        "dtype": "torch.bfloat16",
        "quantization": None,
    }
    parts["cache_config"]["cache_dtype"] = "auto"
    for part, more in fields.items():
        parts.setdefault(part, {}).update(more)
    config = {part: SimpleNamespace(**each) for part, each in parts.items()}
    return SimpleNamespace(vllm_config=SimpleNamespace(**config))


def told(of: SimpleNamespace) -> tuple[dict[str, Any], list[str]]:
    missing: list[str] = []
    reading = model_config(of, 0, "tiny", missing.append)
    return json.loads(reading.config), missing


def test_of_a_configuration_only_plain_values_are_told() -> None:
    config, missing = told(
        scheduler(
            Config(
                num_hidden_layers=4,
                rope_theta=1e4,
                layer_types=["full_attention", "sliding_attention"],
                rope_parameters={"factor": 8.0, "mscale": float("inf")},
                quantization_config={"groups": {"g": {"weights": {"num_bits": 4}}}},
                _name_or_path="/home/somebody/model",
                custom="/home/somebody/model",
                hf_token="hf_secret",
                eos_token_id=2,
                id2label={"0": "a"},
                long="x" * 101,
                many=list(range(513)),
                something=object(),
            )
        )
    )

    assert config == {
        "num_hidden_layers": 4,
        "rope_theta": 1e4,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"factor": 8.0},
        "quantization_config": {"groups": {"g": {"weights": {"num_bits": 4}}}},
    }
    assert missing == []


def test_what_a_larger_model_says_of_its_text_model_counts() -> None:
    whole = Config(quantization_config={"bits": 4}, tie_word_embeddings=True, size=9)

    config, _ = told(scheduler(Config(size=3), whole))

    assert config == {
        "size": 3,
        "quantization_config": {"bits": 4},
        "tie_word_embeddings": True,
    }


def test_a_head_that_the_checkpoint_has_is_not_tied() -> None:
    untied = {"word_embeddings_untied_by_checkpoint": True}

    config, _ = told(
        scheduler(Config(tie_word_embeddings=True), None, model_config=untied)
    )

    assert config == {"tie_word_embeddings": False}


def test_a_configuration_that_breaks_is_read_by_its_attributes() -> None:
    class Broken:
        def __init__(self) -> None:
            self.hidden_size = 8

        def to_dict(self) -> dict[str, Any]:
            raise RuntimeError("not today")

    assert told(scheduler(Broken()))[0] == {"hidden_size": 8}


def test_a_cache_of_the_models_own_dtype_says_which() -> None:
    of = scheduler(Config())
    assert model_config(of, 0, "tiny", print).kv_dtype == "bfloat16"
    of.vllm_config.cache_config.cache_dtype = "fp8"
    reading = model_config(of, 3, "tiny", print)
    assert (reading.kv_dtype, reading.dtype, reading.rank) == ("fp8", "bfloat16", 3)


def test_settings_are_told_by_flag_and_what_is_missing_is_left_out() -> None:
    of = scheduler(Config(), speculative_config={"method": "ngram"})
    del of.vllm_config.scheduler_config.max_num_seqs
    missing: list[str] = []

    reading = engine_settings(of, 1, missing.append, {})

    assert missing == ["Scheduler.vllm_config.scheduler_config.max_num_seqs"]
    assert "max_num_seqs" not in reading.settings
    assert reading.settings["max_num_batched_tokens"] == 7
    assert reading.settings["speculative_method"] == "ngram"
    assert "kv_connector" not in reading.settings
    assert reading.settings["quantization"] is None


def test_what_an_engine_does_without_is_told_as_not_set() -> None:
    """Speculation that is off differs from speculation that nobody tells of."""
    of = scheduler(Config())
    of.vllm_config.speculative_config = None

    settings = engine_settings(of, 1, print, {"attention_backend": None}).settings

    assert settings["speculative_method"] is None
    assert settings["num_speculative_tokens"] is None
    assert "kv_connector" not in settings
    assert "attention_backend" not in settings


class Level(IntEnum):
    O2 = 2


def test_what_workers_chose_stands_for_what_was_left_to_vllm() -> None:
    of = scheduler(Config())
    of.vllm_config.attention_config = SimpleNamespace(backend=None)
    of.vllm_config.optimization_level = Level.O2

    chosen = {"attention_backend": "FLASH_ATTN"}
    settings = engine_settings(of, 1, print, chosen).settings

    assert settings["attention_backend"] == "FLASH_ATTN"
    assert settings["optimization_level"] == "O2"


def test_values_that_are_none_of_the_plain_kinds_become_their_names() -> None:
    assert plain(float("inf")) is None
    assert plain("x" * 200) == "x" * 100
    assert plain(dict) == "dict"
