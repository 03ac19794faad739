"""What can be asked: a row each, with the present value, and lists of others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan

from inferwatch.errors import UsageError
from inferwatch.studies.what_if.setting import SchedulerSetting, SettingChange, combined


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedField:
    """One setting that may be other."""

    key: str
    label: str
    least: float = 1
    most: float
    whole: bool = True
    now: Callable[[SchedulerSetting], str]
    """Its present value."""


def _blocks(setting: SchedulerSetting) -> str:
    return "unknown" if setting.kv_blocks is None else f"{setting.kv_blocks:,}"


FIELDS = (
    AskedField(
        key="max_num_seqs",
        label="max_num_seqs",
        most=65_536,
        now=lambda setting: f"{setting.max_num_seqs:,}",
    ),
    AskedField(
        key="max_num_batched_tokens",
        label="batched tokens",
        most=10_000_000,
        now=lambda setting: f"{setting.max_num_batched_tokens:,}",
    ),
    AskedField(key="kv_blocks", label="KV blocks", most=1_000_000_000, now=_blocks),
    AskedField(
        key="rate",
        label="arrival rate ×",
        least=0.01,
        most=100,
        whole=False,
        now=lambda _: "1",
    ),
)


def read_fields(texts: Mapping[str, str]) -> list[SettingChange]:
    """The changes that are asked for, as typed.

    Raises:
        UsageError: a text is none of that, or it is too much at once.
    """
    found = {each.key: _values(each, texts.get(each.key, "")) for each in FIELDS}
    whole = {each.key: [int(n) for n in found[each.key]] for each in FIELDS}
    return combined(
        max_num_seqs=whole["max_num_seqs"],
        max_num_batched_tokens=whole["max_num_batched_tokens"],
        kv_blocks=whole["kv_blocks"],
        rate=found["rate"],
    )


def _values(field: AskedField, text: str) -> list[float]:
    return [_value(field, word) for word in text.replace(",", " ").split()]


def _value(field: AskedField, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = nan
    if field.least <= value <= field.most and (value.is_integer() or not field.whole):
        return value
    kind = "whole numbers" if field.whole else "numbers"
    raise UsageError(
        f"{field.label}: {kind} from {field.least:g} to {field.most:,.0f}, such as "
        + ("16, 64" if field.whole else "1.5, 2")
    )
