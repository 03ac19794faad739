"""Which tests can share the machine with others: all but those that measure time."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = (
    "embedded_engine",
    "program",
    "inferwatch/cli/test_load.py",
    "inferwatch/cli/test_load_verdict",
    "inferwatch/loadgen",
    "inferwatch/watching",
    "collectors",
)
"""How their paths begin."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes and looks at the clock."""
    for item in items:
        if item.path.relative_to(HERE).as_posix().startswith(ALONE):
            item.add_marker("alone")
