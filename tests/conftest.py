"""Which tests can share the machine with others: all but those that measure time."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = (
    "embedded_engine",
    "program",
    "inferwatch/cli",
    "inferwatch/loadgen",
    "inferwatch/watching",
    "collectors",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes and looks at the clock."""
    folders = [HERE / name for name in ALONE]
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker("alone")
