"""What every reading is: a frozen, tagged Struct."""

from typing import ClassVar

import msgspec


class Reading(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, gc=False
):
    """Base of all readings."""

    INSTANTS: ClassVar[tuple[str, ...]] = ("t_ns",)

    source: str = ""
    """Where it comes from: an engine id, a GPU UUID, a load run. Not on the wire:
    the envelope says it once and the collector fills it in."""
