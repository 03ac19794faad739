"""Models as transformers writes them: a program that prints what is in the files.

Reads keyword arguments of configurations by name from a line of JSON; prints for each
the configuration, as it is written and as it is held, and the header of the tensors.
"""

import json
import struct
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    told = {name: written(kind, sizes) for name, (kind, sizes) in asked.items()}
    print(json.dumps(told, default=str), flush=True)  # noqa: T201 - that is its purpose


def written(kind: str, sizes: dict[str, Any]) -> dict[str, Any]:
    config = transformers.AutoConfig.for_model(kind, **sizes, dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_config(config)
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return {
            "written": json.loads((Path(directory) / "config.json").read_text("utf-8")),
            "held": config.to_dict(),
            "tensors": header(Path(directory) / "model.safetensors"),
        }


def header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        told = json.loads(file.read(length))
    return {name: each for name, each in told.items() if name != "__metadata__"}


if __name__ == "__main__":
    main()
