"""Glyph and ink of the classes of kernels.

Glyphs differ, so that they can be told apart without colour.
"""

from typing import NamedTuple

from inferwatch.profiles.report import KernelClass


class ClassStyle(NamedTuple):
    """How the time of a class is drawn."""

    glyph: str
    ink: str


CLASSES = {
    KernelClass.GEMM: ClassStyle("█", "decode"),
    KernelClass.ATTENTION: ClassStyle("▓", "prefill"),
    KernelClass.MOE: ClassStyle("▚", "mean"),
    KernelClass.NORM: ClassStyle("▒", "kv"),
    KernelClass.SAMPLING: ClassStyle("◆", "output"),
    KernelClass.COMMUNICATION: ClassStyle("╳", "waiting"),
    KernelClass.COPY: ClassStyle("=", "warn"),
    KernelClass.KV_WRITE: ClassStyle("▞", "cached"),
    KernelClass.OTHER: ClassStyle("·", "other"),
}
"""In the order in which they are drawn."""
HOST_STYLE = ClassStyle("░", "faint")
"""Of the time in which nothing was executed."""
