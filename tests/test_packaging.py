"""The wheel holds three packages and says one version everywhere."""

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import inferwatch

ROOT = Path(__file__).parent.parent


def test_the_version_is_one_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["version"] == inferwatch.__version__


@pytest.mark.process
def test_the_top_level_holds_only_what_was_agreed() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tops = {name.split("/")[0] for name in listed.stdout.splitlines()}

    folders = {"inferwatch", "collectors", "embedded_engine", "tests", "screenshots"}
    tools = {"benchmarks", "docs", "requirements", ".ci"}
    files = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"}
    files |= {"CONTRIBUTING.md", ".gitignore"}
    assert tops <= folders | tools | files


def test_the_documentation_goes_where_the_source_goes() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]

    packed = build["build"]["targets"]["sdist"]["only-include"]
    assert {"README.md", "docs", "CHANGELOG.md"} <= {*packed}


def of_the_wheel(test: Callable[[Path], None]) -> Callable[[Path], None]:
    """It is built once, by whoever has all of them."""
    return pytest.mark.process(pytest.mark.xdist_group("wheel")(test))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@of_the_wheel
def test_the_wheel_holds_exactly_the_three_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}

    assert tops == {"inferwatch", "collectors", "embedded_engine"}


@of_the_wheel
def test_the_wheel_installs_the_probe_by_general_plugins_only(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("entry_points.txt"))
    text = archive.read(name).decode()

    assert "[vllm.general_plugins]" in text
    assert "stat_logger" not in text


@of_the_wheel
def test_the_wheel_brings_a_sample_session_that_is_small(wheel: Path) -> None:
    (sample,) = (
        entry
        for entry in zipfile.ZipFile(wheel).infolist()
        if entry.filename.startswith("inferwatch/sample/sample.")
    )

    assert 100_000 < sample.compress_size < 600_000
