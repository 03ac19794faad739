"""GPUs are meant by name or number; without a word, those that CUDA would see."""

import pytest

from collectors.contract.readings import GpuInfo
from collectors.hardware.gpu_selection import GpuSelection

GPUS = [
    GpuInfo(t_ns=1, uuid=uuid, source=uuid, index=index)
    for index, uuid in enumerate(("GPU-aa01", "GPU-ab02", "GPU-1234"))
]
SLICE = GpuInfo(t_ns=1, uuid="MIG-77", source="MIG-77", parent_uuid="GPU-ab02")
SAME, MIXED = ["H100"] * 3, ["H100", "A100", "H100"]


def chosen(
    *wanted: str, visible: str | None = None, names: list[str] | None = None
) -> list[int]:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    selection = GpuSelection(wanted, environment, names or SAME)
    return [each.index or 0 for each in GPUS if selection.takes(each)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ((), [0, 1, 2]),
        (("all",), [0, 1, 2]),
        (("none",), []),
        (("1",), [1]),
        (("0,2",), [0, 2]),
        (("GPU-ab02",), [1]),
        (("gpu-a",), [0, 1]),
        (("ab",), [1]),
        (("1234",), [2]),
        (("GPU-zz", "2"), [2]),
    ],
)
def test_gpus_are_named_by_number_uuid_or_its_beginning(
    wanted: tuple[str, ...], found: list[int]
) -> None:
    assert chosen(*wanted) == found


@pytest.mark.parametrize(
    ("visible", "found"),
    [("1", [1]), ("GPU-aa,GPU-12", [0, 2]), ("", []), ("-1", []), ("0,-1,2", [0])],
)
def test_without_a_word_cuda_visible_devices_decides(
    visible: str, found: list[int]
) -> None:
    assert chosen(visible=visible) == found


def test_a_word_of_ours_counts_for_more_than_the_environment() -> None:
    assert chosen("all", visible="1") == [0, 1, 2]
    assert chosen("2", visible="1") == [2]


def test_numbers_mean_nothing_where_cuda_orders_mixed_models_its_own_way() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    selection = GpuSelection((), environment, MIXED)

    assert [selection.takes(each) for each in GPUS] == [True] * 3
    assert "--gpus" in (selection.unclear or "")
    ordered = GpuSelection(
        (), {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED
    )
    assert [ordered.takes(each) for each in GPUS] == [False, True, False]
    assert ordered.unclear is None


def test_a_slice_is_meant_by_its_own_name_or_by_its_gpus() -> None:
    by_own = GpuSelection(("MIG-7",), {}, SAME)

    assert by_own.takes(SLICE)
    assert not any(by_own.takes(each) for each in GPUS)
    assert GpuSelection(("GPU-ab02",), {}, SAME).takes(SLICE)
    assert not GpuSelection(("GPU-aa01",), {}, SAME).takes(SLICE)


def test_who_names_none_is_told_which_there_are() -> None:
    said = GpuSelection(("7",), {}, SAME).why_none(GPUS)

    assert said.startswith("--gpus names none of the GPUs here: 0 GPU-aa01, ")
    assert "--gpus all" in said


def test_who_wants_none_is_told_how_to_see_them() -> None:
    said = GpuSelection((), {"CUDA_VISIBLE_DEVICES": ""}, SAME).why_none(GPUS)

    assert said == "CUDA_VISIBLE_DEVICES lets no GPU be seen; --gpus all shows them"
