"""How large model and cache are, added up over workers: here these are made up."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embedded_engine.probe.engine_size import EngineSize, teller

Ask = Callable[[Callable[[Any], Any]], list[Any]]


def page(size: int, tokens: int = 16, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(page_size_bytes=size, block_size=tokens, **fields)


def cache(*groups: tuple[int, SimpleNamespace]) -> SimpleNamespace:
    """Of one worker: so many layers with such pages."""
    return SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(layer_names=["layer"] * layers, kv_cache_spec=spec)
            for layers, spec in groups
        ]
    )


def tensor(elements: int, size: int = 2) -> SimpleNamespace:
    return SimpleNamespace(numel=lambda: elements, element_size=lambda: size)


def worker(*tensors: SimpleNamespace) -> SimpleNamespace:
    model = SimpleNamespace(parameters=lambda: iter(tensors))
    return SimpleNamespace(get_model=lambda: model, device=SimpleNamespace(type="cpu"))


def learned(
    caches: list[SimpleNamespace],
    *workers: SimpleNamespace,
    shards: int = 1,
    ask: Ask | None = None,
    world: int | None = None,
) -> tuple[EngineSize, list[str]]:
    """What is known of such workers, and what is said to be missing."""
    missing: list[str] = []
    size = EngineSize(missing.append)
    executor = SimpleNamespace(
        parallel_config=SimpleNamespace(
            world_size=world or len(workers), decode_context_parallel_size=shards
        ),
        collective_rpc=ask or (lambda tell: [tell(each) for each in workers]),
    )
    size.learn(executor, (caches,), None, 0, 0)
    return size, missing


def test_weights_and_caches_of_all_workers_are_added_up() -> None:
    size, missing = learned(
        [cache((3, page(3_200))), cache((2, page(3_200)))],  # two pipeline stages
        worker(tensor(100), tensor(7, size=1)),
        worker(tensor(50)),
    )

    assert size.weight_bytes == 200 + 7 + 100
    assert size.kv_bytes_per_token == 5 * 3_200 / 16
    assert missing == size.gpus == []


def test_groups_of_layers_differ_and_state_that_does_not_grow_is_none() -> None:
    of_all_layers = page(1_600, kv_cache_specs={"a": 1, "b": 2})
    state = page(9_999, mamba_type="mamba2")

    size, _ = learned(
        [cache((2, of_all_layers), (4, page(160, 32)), (8, state))], worker(tensor(1))
    )

    assert size.kv_bytes_per_token == 1_600 / 16 + 4 * 160 / 32


def test_a_cache_whose_tokens_are_shared_out_counts_each_token_once() -> None:
    size, _ = learned(
        [cache((1, page(1_600)))] * 2, worker(tensor(1)), worker(tensor(1)), shards=2
    )

    assert size.kv_bytes_per_token == 100


def test_one_worker_that_does_not_tell_makes_all_unknown() -> None:
    size, missing = learned(
        [cache((1, page(1_600)))], worker(tensor(1)), SimpleNamespace()
    )

    assert size.weight_bytes is size.kv_bytes_per_token is None
    assert missing == ["Worker.get_model in all of 2 workers"]


def test_an_executor_that_cannot_ask_is_said_and_breaks_nothing() -> None:
    def refuse(_: object) -> list[Any]:
        raise RuntimeError("the executor failed")

    size, missing = learned([cache((1, page(1_600)))], ask=refuse, world=1)

    assert size.weight_bytes is None
    assert size.kv_bytes_per_token == 100
    assert missing == [
        "workers that tell of their models: RuntimeError('the executor failed')"
    ]


def test_a_worker_is_asked_with_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    sent = cloudpickle.dumps(teller("get_model", "device"))
    for name in [each for each in sys.modules if each.startswith("embedded_engine")]:
        monkeypatch.setitem(sys.modules, name, None)

    assert cloudpickle.loads(sent)(worker(tensor(3))) == (6, None)
