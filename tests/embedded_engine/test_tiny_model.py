"""The tiny model: made once, whole or not at all, and fit for vLLM."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]
"""Its libraries come with vLLM."""


def make(directory: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-m", "embedded_engine.tiny_model", str(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a directory that it has for itself."""
    return make(tmp_path_factory.mktemp("models"))


def test_it_is_made_once(made: Path) -> None:
    written = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}

    assert make(made.parent) == made

    again = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert again == written
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_it_is_the_same_everywhere_whatever_a_killed_make_left(
    made: Path, tmp_path: Path
) -> None:
    half = tmp_path / "making-killed"
    half.mkdir()
    (half / "config.json").write_text("{}")

    other = make(tmp_path)

    assert (other / "model.safetensors").stat().st_size > 1_000_000
    for path in made.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


async def test_it_speaks_words_for_as_long_as_it_is_asked(
    made: Path, tmp_path: Path
) -> None:
    speaker = "tests.embedded_engine.tiny_speaker"
    with closing(loaded_vllm().run(tmp_path / "log", speaker, str(made))) as program:
        answer = await program.told()

    assert answer["prompt"] == (
        "<|begin|><|user|>Grüße, 世界! \N{SNOWMAN}<|end|><|assistant|>"
    )
    assert len(answer["pieces"]) == 200  # no early end of sequence
    assert all(piece.strip().isalpha() for piece in answer["pieces"])
    assert len(set(answer["pieces"])) > 100
