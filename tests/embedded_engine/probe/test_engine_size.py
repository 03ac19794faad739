"""How large model and cache are, added up over workers: here these are made up."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embedded_engine.probe.about.engine_size import EngineSize, all_questions, memory_of
from embedded_engine.probe.vllm_names import GRAPHS_IN_PEAK

Ask = Callable[[Callable[[Any], Any]], list[Any]]


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """To load it, and torch, takes longer than all of these."""
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, GRAPHS_IN_PEAK[0], None)


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
    sent = cloudpickle.dumps(all_questions())
    for name in [each for each in sys.modules if each.startswith("embedded_engine")]:
        monkeypatch.setitem(sys.modules, name, None)

    answers = cloudpickle.loads(sent)(worker(tensor(3)))
    assert answers["weight_bytes"] == 6


def test_weights_that_were_packed_away_are_counted() -> None:
    sizes = {"input_size_per_partition": 5, "output_size_per_partition": 7}
    packed = SimpleNamespace(weight=tensor(0), **sizes)
    plain = SimpleNamespace(weight=tensor(35), **sizes)
    model = SimpleNamespace(
        parameters=lambda: iter([tensor(35), tensor(0)]),
        modules=lambda: iter([SimpleNamespace(), plain, packed]),
    )

    answers = all_questions()(SimpleNamespace(get_model=lambda: model))

    assert answers["weight_bytes"] == 2 * (35 + 5 * 7)


def test_what_a_worker_on_a_gpu_profiled_is_told_apart() -> None:
    storage = SimpleNamespace(data_ptr=lambda: 1, nbytes=lambda: 40)
    cache = SimpleNamespace(untyped_storage=lambda: storage)
    profiled = SimpleNamespace(
        **vars(worker(tensor(30))),
        init_snapshot=SimpleNamespace(total_memory=200),
        requested_memory=180,
        total_consumed=75,
        peak_activation_memory=25,
        cudagraph_memory_estimate=5,
        cache_config=SimpleNamespace(
            gpu_memory_utilization=0.9, kv_cache_memory_bytes=None
        ),
        model_runner=SimpleNamespace(model_memory_usage=62, kv_caches=[cache, cache]),
    )

    answers = all_questions()(profiled)
    apart = memory_of(3, answers | {"graphs_in_peak": False, "load_s": 1.5})
    together = memory_of(3, answers | {"graphs_in_peak": True})

    assert (apart.worker, apart.total_bytes, apart.allowed_bytes) == (3, 200, 180)
    assert (apart.weight_bytes, apart.kv_bytes, apart.graph_bytes) == (60, 40, 5)
    assert (apart.activation_bytes, together.activation_bytes) == (25, 20)
    assert apart.workspace_bytes == 75 - 62
    assert (apart.load_s, together.load_s) == (1.5, None)
    assert {*apart.read_from} == {*together.read_from} | {"load_s"}


def test_a_size_of_the_kv_cache_that_was_given_heeds_no_share() -> None:
    known = {"allowed_bytes": 90, "utilization": 0.9}

    assert memory_of(0, known).allowed_bytes == 90
    assert memory_of(0, known).total_bytes == 100
    assert memory_of(0, known | {"given_kv_bytes": 7}).allowed_bytes is None


def test_an_estimate_of_no_graphs_is_unknown_not_0() -> None:
    """As a vLLM 0.26 on an H100 told while it captured graphs."""
    assert memory_of(0, {"graph_bytes": 0}).graph_bytes is None
