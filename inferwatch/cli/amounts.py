"""Amounts as people type them: ``30d``, ``5GB``."""

import re
from typing import Any

import click

AGES_S = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Age(click.ParamType):
    """``90m``, ``36h``, ``30d``, ``4w``: seconds."""

    name = "AGE"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:  # noqa: ANN401  click's
        """Seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdw])", str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is no age: try 36h, 30d or 4w", param, ctx)
        return float(found[1]) * AGES_S[found[2]]


class Size(click.ParamType):
    """``500MB``, ``5GB``, decimal: bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:  # noqa: ANN401  click's
        """Bytes."""
        text = str(value).strip().upper()
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", text)
        unit = found[2] if found else None
        if found is None or unit not in SIZES:
            self.fail(f"{value!r} is no size: try 500MB or 5GB", param, ctx)
        return int(float(found[1]) * SIZES[unit])
