"""A moment of a live session as it was shown, kept while time goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.session.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Still:
    """Its pictures over all windows, so that a held view can change them."""

    t_ns: int
    pictures: Mapping[Window, Snapshot]

    @classmethod
    def of(cls, pipeline: Pipeline, t_ns: int) -> Self:
        """This moment; only now can all of it be had without a record."""
        return cls(t_ns, {each: pipeline.snapshot(t_ns, each) for each in Window})
