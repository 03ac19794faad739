"""Classes and turns of a load run for people: a line each, in 80 columns."""

from collections.abc import Mapping
from typing import Any

from inferwatch.formatting import format_count, format_duration

Parts = Mapping[str, Mapping[str, Any]]
HEADS = ("sent", "failed", "prompt", "TTFT p50", "p99", "TPOT p50", "E2EL p50", "good")
WIDTHS = (7, 7, 8, 10, 9, 9, 9, 7)
NAME_CELLS = 14


def parts_table(head: str, parts: Parts) -> list[str]:
    """One line each; none where there are none."""
    if not parts:
        return []
    heads = _line(head, HEADS)
    return [heads, *(_line(name, _cells(part)) for name, part in parts.items())]


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    requests, tokens, slo = part["requests"], part["tokens"], part["slo"]
    each = tokens["prompt"] / requests["sent"] if requests["sent"] else None
    ttft = part["ttft_s"]
    return (
        format_count(requests["sent"]),
        format_count(requests["failed"]),
        format_count(None if each is None else round(each)),
        format_duration(ttft["p50"]),
        format_duration(ttft["p99"]) + ("*" if "p99" in ttft["weak"] else " "),
        format_duration(part["tpot_s"]["p50"]),
        format_duration(part["e2el_s"]["p50"]),
        "–" if slo is None or slo["share"] is None else f"{slo['share']:.1%}",
    )


def _line(name: str, cells: tuple[str, ...]) -> str:
    if len(name) > NAME_CELLS:
        name = f"{name[: NAME_CELLS - 1]}…"
    padded = (cell.strip(" ").rjust(w) for cell, w in zip(cells, WIDTHS, strict=True))
    return name.ljust(NAME_CELLS) + "".join(padded)
