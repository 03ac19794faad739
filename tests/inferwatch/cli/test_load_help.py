"""``inferwatch load --help``: every option under a heading, in 80 columns."""

import re

import click
import pytest
from click.testing import CliRunner

from inferwatch.cli.load import load
from inferwatch.cli.load_flags import SECTIONS

HEADINGS = [*SECTIONS, "Help"]


@pytest.fixture
def shown() -> dict[str, str]:
    """What stands under each heading."""
    text = CliRunner().invoke(load, ["--help"], terminal_width=80).output
    assert max(map(len, text.splitlines())) <= 80
    parts = re.split(rf"^({'|'.join(HEADINGS)}):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_option_stands_under_one_heading(shown: dict[str, str]) -> None:
    options = load.get_params(click.Context(load))
    for option in (each for each in options if isinstance(each, click.Option)):
        flag = re.compile(rf"^  {max(option.opts, key=len)}\b", re.MULTILINE)
        assert sum(bool(flag.search(text)) for text in shown.values()) == 1, flag


def test_only_help_itself_is_left_for_the_end(shown: dict[str, str]) -> None:
    assert re.findall("--[a-z]+", shown["Help"]) == ["--help"]
