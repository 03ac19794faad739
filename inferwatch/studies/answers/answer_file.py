"""A file of the answers of several settings, a line of JSON for each round.

Its first line is of the baseline: what it was asked and answered, as token ids, which
later settings are asked and score. Who can read it can tell prompts and answers, so
only its owner may.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.studies.answers.asking import AskedRound, BaselineAnswers

VERSION = 1
MOST_BYTES = 256_000_000


class RoundLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of questions to one setting."""

    version: int = VERSION
    name: str | None = None
    """Of its session, as given by the user."""
    session: str | None = None
    """The id of its session; None if nothing was recorded."""
    database: str | None = None
    """The name of the file that the session is in."""
    hashes: AnswerHashes
    prompts: list[list[int]] | None = None
    """Token ids, of the first line alone."""
    tokens: list[list[int]] | None = None

    @property
    def setting(self) -> str:
        """What people call it."""
        return self.name or self.session or "a setting without a name"

    @property
    def identity(self) -> tuple[str | None, str | None, str | None]:
        """Equal for rounds of one session."""
        return self.name, self.session, self.database

    def is_of(self, session: str, name: str | None, database: str | None) -> bool:
        """Whether it was asked beside this session."""
        if self.session is None:
            return self.name is not None and self.name == name
        known = database is None or self.database is None or self.database == database
        return known and self.session == session


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """A file of answers, read whole."""

    path: Path
    lines: tuple[RoundLine, ...] = ()

    @property
    def baseline(self) -> BaselineAnswers | None:
        """What the first setting was asked and answered; None in an empty file."""
        first = self.lines[0] if self.lines else None
        if first is None or first.prompts is None or first.tokens is None:
            return None
        return BaselineAnswers(prompts=first.prompts, tokens=first.tokens)

    def of(
        self, sessions: Collection[tuple[str, str | None, str | None]]
    ) -> list[AnswerHashes]:
        """The rounds asked beside these sessions: id, name and database of each."""
        return [
            line.hashes
            for line in self.lines
            if any(line.is_of(*each) for each in sessions)
        ]

    def add(self, asked: AskedRound, line: RoundLine) -> "AnswerFile":
        """Append a round; the first one with the baseline's token ids.

        Raises:
            UsageError: it cannot be written.
        """
        if not self.lines and asked.baseline is not None:
            line = msgspec.structs.replace(
                line, prompts=asked.baseline.prompts, tokens=asked.baseline.tokens
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            with os.fdopen(os.open(self.path, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from (
                error
            )
        return AnswerFile(path=self.path, lines=(*self.lines, line))


def read_answers(path: Path, *, new: bool = False) -> AnswerFile:
    """Read a file of answers; with ``new`` it need not be there.

    Raises:
        UsageError: it is missing, damaged, or no such file.
    """
    try:
        if new and not path.exists():
            return AnswerFile(path=path)
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is too large for a file of answers")
        rows = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            line = msgspec.json.decode(row, type=RoundLine)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{path} is no file of answers, as `inferwatch load --answers-to` "
                f"writes it, or is damaged in line {number}: {error}"
            ) from error
        if line.version > VERSION or not _is_whole(line):
            raise UsageError(f"{path}: line {number} does not fit this inferwatch")
        lines.append(line)
    if not lines and not new:
        raise UsageError(f"{path} is empty: it holds no answers")
    return AnswerFile(path=path, lines=tuple(lines))


def _is_whole(line: RoundLine) -> bool:
    """Whether every list has a row for each prompt, and scores for each token."""
    hashes, many = line.hashes, len(line.hashes.alone)
    tokens, prompts = line.tokens, line.prompts
    lists = (hashes.together, hashes.chosen, hashes.scored_alone)
    lengths = {len(each) for each in (*lists, hashes.scored_together) if each}
    if (tokens is None) != (prompts is None) or lengths - {many}:
        return False
    if any(len(each) != many for each in (tokens, prompts) if each is not None):
        return False
    return [*map(len, hashes.scored_alone)] == [*map(len, hashes.scored_together)]
