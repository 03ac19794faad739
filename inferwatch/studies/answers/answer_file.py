"""A file of the answers of several settings, a line of JSON for each round.

Its first line is of the baseline: what it was asked and answered, as token ids, which
later settings are asked and score. Who can read it can tell prompts and answers, so
only its owner may.
"""

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from collectors.contract.readings import AnswerHashes
from inferwatch.errors import UsageError
from inferwatch.formatting import counted
from inferwatch.studies.answers.asking import AskedRound, BaselineAnswers

VERSION = 1
MOST_BYTES = 256_000_000
OWNER_ALONE = stat.S_IRUSR | stat.S_IWUSR


class RoundLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of questions to one setting."""

    version: int = VERSION
    name: str | None = None
    """Of its session, as given by the user."""
    session: str | None = None
    """The id of its session in its own file; None if nothing was recorded."""
    identity: str
    """Of its session, whichever file it is in and is moved to, as
    ``record.sessions.identity`` makes it; else of the watch that was not recorded."""
    hashes: AnswerHashes
    prompts: list[list[int]] | None = None
    """Token ids, of the first line alone."""
    tokens: list[list[int]] | None = None

    @property
    def setting(self) -> str:
        """What people call it."""
        return self.name or self.session or "a setting without a name"


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

    def of(self, identities: Collection[str]) -> list[AnswerHashes]:
        """The rounds asked beside these sessions."""
        return [line.hashes for line in self.lines if line.identity in identities]

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
            with os.fdopen(os.open(self.path, flags, OWNER_ALONE), "wb") as file:
                os.fchmod(file.fileno(), OWNER_ALONE)  # it may be older than we are
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
    lines: list[RoundLine] = []
    for number, row in enumerate(rows, 1):
        line = _decoded(row, path, number)
        if (fault := _fault(line) or _unlike(lines, line)) is not None:
            raise UsageError(f"{path} is damaged in line {number}: {fault}")
        lines.append(line)
    if not lines and not new:
        raise UsageError(f"{path} is empty: it holds no answers")
    return AnswerFile(path=path, lines=tuple(lines))


def _decoded(row: bytes, path: Path, number: int) -> RoundLine:
    try:
        line = msgspec.json.decode(row, type=RoundLine)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is no file of answers, as `inferwatch load --answers-to` "
            f"writes it, or is damaged in line {number}: {error}"
        ) from error
    if line.version > VERSION:
        raise UsageError(f"{path}: line {number} is of a newer inferwatch")
    return line


def _fault(line: RoundLine) -> str | None:
    """Which list does not fit the answers to prompts sent alone; None if all do."""
    hashes, many = line.hashes, len(line.hashes.alone)
    if (line.tokens is None) != (line.prompts is None):
        return "it has prompts or their answers, but not both"
    if hashes.scored_of is None and (hashes.scored_alone or hashes.scored_together):
        return "it has scores, but not of which tokens"
    scored = hashes.scored_of is not None
    lists = {
        "together": hashes.together,
        "chosen": hashes.chosen or None,
        "scored_alone": hashes.scored_alone if scored else None,
        "scored_together": hashes.scored_together if scored else None,
        "prompts": line.prompts,
        "tokens": line.tokens,
    }
    for name, each in lists.items():
        if each is not None and len(each) != many:
            return f"{name} is of {counted(len(each), 'prompt')}, alone of {many}"
    return _other_lengths(line)


def _other_lengths(line: RoundLine) -> str | None:
    """Which list has another number of tokens of some prompt; None if none has."""
    hashes, tokens = line.hashes, line.tokens
    if _lengths(hashes.scored_alone) != _lengths(hashes.scored_together):
        return "scored_alone and scored_together are of other tokens"
    answers = _lengths(hashes.alone)
    chosen = zip(_lengths(hashes.chosen), answers, strict=False)
    if any(told not in {0, answered} for told, answered in chosen):  # 0: not known
        return "chosen has another number of tokens than alone"
    if tokens is not None and _lengths(tokens) != answers:
        return "tokens has another number of them than alone"
    return None


def _lengths(lists: Sequence[Sequence[object]]) -> list[int]:
    return [len(each) for each in lists]


def _unlike(before: Sequence[RoundLine], line: RoundLine) -> str | None:
    """What contradicts an earlier line; None if nothing does."""
    hashes = line.hashes
    for number, each in enumerate(before, 1):
        if each.hashes.asked == hashes.asked:
            if len(each.hashes.alone) != len(hashes.alone):
                return f"it was asked what line {number} was, but of other prompts"
            break
    if hashes.scored_of is None:
        return None
    for number, each in enumerate(before, 1):
        if each.hashes.scored_of == hashes.scored_of:
            before_it = _lengths(each.hashes.scored_alone)
            if before_it != _lengths(hashes.scored_alone):
                return f"it scored what line {number} did, but other tokens"
            break
    return None
