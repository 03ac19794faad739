"""Which tests need the machine for themselves, and which one interpreter."""

import os
import sys
from pathlib import Path

import pytest

os.environ["INFERWATCH_TRACEBACK"] = "1"  # a fault of ours is seen, not told

HERE = Path(__file__).parent
ALONE = (
    "embedded_engine",
    "program",
    "inferwatch/cli/test_load.py",
    "inferwatch/cli/test_load_verdict",
    "inferwatch/loadgen",
    "inferwatch/session",
    "collectors",
)
"""How the paths begin of what starts processes and looks at the clock."""
DRAWN_BY = (3, 11)
"""The interpreter that draws the pictures: others wrap and number them otherwise."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by where they stand and what they use."""
    drawn = pytest.mark.skipif(
        sys.version_info[:2] != DRAWN_BY, reason="pictures belong to one interpreter"
    )
    for item in items:
        if "snap_compare" in getattr(item, "fixturenames", ()):
            item.add_marker(drawn)
        if item.path.relative_to(HERE).as_posix().startswith(ALONE):
            item.add_marker("alone")
