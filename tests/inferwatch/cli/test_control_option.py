"""``--control`` of the commands that start an engine."""

import click
import pytest
from click.testing import CliRunner

from embedded_engine.probe_settings import ProbeSettings
from inferwatch.cli.demo import demo
from inferwatch.cli.options import probe_options
from inferwatch.cli.serve import serve


@pytest.mark.parametrize("command", [serve, demo], ids=["serve", "demo"])
@pytest.mark.parametrize("words", [[], ["--control"]], ids=["without", "with"])
def test_an_engine_has_control_when_it_was_asked_for(
    command: click.Command, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[ProbeSettings] = []

    def started(*, probe: ProbeSettings, **_: object) -> None:
        found.append(probe)

    monkeypatch.setattr(command, "callback", probe_options(started))
    model = ["m"] if command is serve else []

    CliRunner().invoke(command, [*words, *model], standalone_mode=False)

    assert [each.control for each in found] == [bool(words)]
