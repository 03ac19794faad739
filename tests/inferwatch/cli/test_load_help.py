"""``inferwatch load --help``: every option under a heading, as the plan has it."""

import re

import click
import pytest
from click.testing import CliRunner

from inferwatch.cli.load import load
from inferwatch.cli.load_options import SECTIONS
from inferwatch.loadgen.plan.plan import FIELDS
from inferwatch.ui.load.form import FORM

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
        flag = re.compile(rf"^  (-\w, )?{max(option.opts, key=len)}\b", re.MULTILINE)
        assert sum(bool(flag.search(text)) for text in shown.values()) == 1, flag


def test_only_help_itself_is_left_for_the_end(shown: dict[str, str]) -> None:
    assert re.findall("--[a-z]+", shown["Help"]) == ["--help"]


def test_each_flag_that_the_plan_declares_is_one_of_the_command() -> None:
    names = {each.name for each in load.get_params(click.Context(load))}

    for field in FIELDS:
        for flag in field.option.flags:
            assert (flag.key or field.name) in names


def test_each_row_that_the_plan_declares_is_one_of_the_form() -> None:
    declared = {field.option.row.key for field in FIELDS if field.option.row}

    assert [row.key for row in FORM if row.key in declared] == [row.key for row in FORM]
    assert len(FORM) == len(declared)
