"""Runs tests of one file, in a process that has the fake library for a driver."""

import ast
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType

from _pytest.assertion.rewrite import rewrite_asserts

from tests.fake_nvml import FakeNvml


def main() -> None:
    """Write down after each test how it went."""
    file, answer, *tests = sys.argv[1:]
    module = loaded(Path(file))
    fake = FakeNvml()
    outcomes: dict[str, str | None] = {}
    for test in tests:
        fake.do("fresh")
        try:
            getattr(module, test).scenario(fake)
        except Exception:  # noqa: BLE001 - told by whoever asked
            outcomes[test] = traceback.format_exc()
        else:
            outcomes[test] = None
        Path(answer).write_text(json.dumps(outcomes), encoding="utf-8")


def loaded(file: Path) -> ModuleType:
    """The tests, whose assertions say what they compared, as pytest has it."""
    source = file.read_bytes()
    tree = ast.parse(source)
    rewrite_asserts(tree, source, str(file))
    module = ModuleType("scenarios")
    exec(compile(tree, file, "exec"), module.__dict__)  # noqa: S102 - our own tests
    return module


if __name__ == "__main__":
    main()
