"""A profile that was read, and how it is printed as the options say."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferwatch.cli.say import say, say_coloured, say_json
from inferwatch.errors import StorageError
from inferwatch.feed import ProfileStage
from inferwatch.printing.destination import Destination
from inferwatch.printing.document import Block
from inferwatch.printing.page import all_numbers, page, write_page
from inferwatch.printing.summary.profile import (
    ProfileContext,
    profile_document,
    profile_json,
)
from inferwatch.printing.text import document_text, painter
from inferwatch.profiles.report import ProfileReport
from inferwatch.record.file.trace_folder import copy_plain

NOTES = {
    ProfileStage.PROFILING: "profiling",
    ProfileStage.WRITING: "the engine writes its traces",
    ProfileStage.READING: "reading the traces",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of ``inferwatch profile``, as the user gave them."""

    steps: int | None = None
    most_s: float | None = None
    when: str | None = None
    within_s: float | None = None
    number: int | None = None
    against: str | None = None
    against_number: int | None = None
    commands: bool = False
    page: Path | None = None
    force: bool = False
    traces: Path | None = None
    as_json: bool = False
    name: str | None = None
    database: Path | None = None
    record: bool = True

    @property
    def of_engines(self) -> list[str]:
        """Flags that were given and are for an engine that runs."""
        given = {
            "--steps": self.steps,
            "--most": self.most_s,
            "--when": self.when,
            "--name": self.name,
            "--commands": self.commands or None,
            "--no-record": None if self.record else True,
        }
        return [flag for flag, value in given.items() if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProfile:
    """A profile that was read, with its traces."""

    report: ProfileReport
    context: ProfileContext
    traces: Sequence[Path]
    gpus: Sequence[str] = ()
    """Their names, each once, where they are known."""


def print_profile(
    read: ReadProfile, options: ProfileOptions, destination: Destination | None
) -> None:
    if options.traces is not None:
        _copy(read.traces, options.traces)
    of = read.context.session_id or read.context.source
    blocks = profile_document(read.report, read.context)
    facts = profile_json(read.report, read.context)
    print_blocks(f"Profile of {of}", blocks, facts, options, destination)


def print_blocks(
    title: str,
    blocks: Sequence[Block],
    facts: dict[str, Any],
    options: ProfileOptions,
    destination: Destination | None,
) -> None:
    """Print a document or its numbers, or write a page of both."""
    if destination is not None:
        numbers = all_numbers("All of them, as --json prints them", facts)
        write_page(page(title, [*blocks, numbers]), destination)
        if not destination.is_stdout:
            say(f"{destination.path}", err=True)
    if options.as_json:
        say_json(facts)
    elif destination is None:
        text = document_text(([each] for each in blocks), paint=painter())
        say_coloured(text)


def _copy(traces: Sequence[Path], folder: Path) -> None:
    """Copy traces into a folder.

    Raises:
        StorageError: there are none, or they cannot be written.
    """
    if not traces:
        raise StorageError("its traces are gone: only what was read of them is left")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in traces:
            copy_plain(each, folder / each.name)
            say(f"{folder / each.name}", err=True)
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
