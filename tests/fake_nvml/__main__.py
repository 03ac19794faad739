"""Simulated GPUs: ``python -m tests.fake_nvml [--do COMMANDS] PROGRAM …``."""

import os
import shutil
import sys
from pathlib import Path

from tests.fake_nvml import environment


def main() -> None:
    """Become the program, which finds the fake library instead of a driver."""
    words, commands = sys.argv[1:], os.environ.get("FAKE_NVML", "")
    if words[:1] == ["--do"]:
        commands, words = words[1], words[2:]
    if not words:
        sys.exit(__doc__)
    beside = Path(sys.executable).with_name(words[0])
    program = str(beside) if beside.exists() else shutil.which(words[0]) or words[0]
    os.execve(program, [program, *words[1:]], environment(commands))  # noqa: S606 - our trade


if __name__ == "__main__":
    main()
