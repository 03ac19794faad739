"""Options under headings, for commands that have many."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
Sections = Mapping[str, Sequence[Option]]


def sectioned(sections: Sections) -> type[click.Command]:
    """A command whose ``--help`` shows its options by section."""
    places = {
        name: heading
        for heading, options in sections.items()
        for name in _names(options)
    }

    class Sectioned(click.Command):
        """Its options under their headings, the rest last."""

        def format_options(
            self, ctx: click.Context, formatter: click.HelpFormatter
        ) -> None:
            """Write them."""
            rows: dict[str, list[tuple[str, str]]] = {each: [] for each in sections}
            for option in self.get_params(ctx):
                record = option.get_help_record(ctx)
                if record is not None and isinstance(option, click.Option):
                    heading = places.get(option.name or "", "Help")
                    rows.setdefault(heading, []).append(record)
            for heading, records in rows.items():
                with formatter.section(heading):
                    formatter.write_dl(records)

    return Sectioned


def options_of(sections: Sections) -> Option:
    """Declare them all, in their order."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        for options in reversed(list(sections.values())):
            for option in reversed(options):
                command = option(command)
        return command

    return declare


def _names(options: Sequence[Option]) -> list[str]:
    """What click calls their parameters."""

    def nothing() -> None:
        """Only carries options."""

    command: Callable[..., Any] = nothing
    for option in options:
        command = option(command)
    declared: list[click.Parameter] = getattr(command, "__click_params__", [])
    return [each.name or "" for each in declared]
