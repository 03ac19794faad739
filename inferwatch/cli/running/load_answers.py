"""Asks fixed prompts after a load, and adds the answers to a file."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from inferwatch.cli.running.load_plan import LoadOptions
from inferwatch.errors import SourceError, StorageError, UsageError
from inferwatch.formatting import counted
from inferwatch.live.load.load_session import LoadSession
from inferwatch.record.sessions.identity import session_identity
from inferwatch.studies.answers.answer_file import (
    AnswerFile,
    RoundLine,
    read_answers,
)
from inferwatch.studies.answers.asking import (
    PROMPTS,
    AskedRound,
    answer_prompts,
    ask_answers,
)
from inferwatch.studies.answers.comparing import AnswerComparison, compare_answers

BASELINE_TIMES = 2
"""How often the first setting of a file is asked: its own noise is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked after the load, and the file for the answers."""

    file: AnswerFile
    prompts: list[list[int]]
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBeside:
    """The answers that a load added to a file."""

    path: Path
    prompts: int
    comparison: AnswerComparison | None
    """With the file's first setting; None of that itself."""
    fault: str | None = None
    """Why nothing was added."""

    @property
    def sentence(self) -> str:
        """What was added, and how it compares."""
        if self.fault is not None:
            return f"No answers were added to {self.path}: {self.fault}"
        prompts = counted(self.prompts, "prompt")
        if self.comparison is None:
            return (
                f"The answers to {prompts} are the baseline in {self.path}, with their "
                "token ids: load another setting with --answers-to and this file."
            )
        return f"Answers added to {self.path}: {self.comparison.sentence}."

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "file": str(self.path),
            "prompts": self.prompts,
            "fault": self.fault,
            "against_first": self.comparison and self.comparison.as_json(),
        }


def questions_of(options: LoadOptions) -> Questions | None:
    """Return what to ask after the load; None if nothing is asked.

    Raises:
        UsageError: the options do not go together, or the file is no file of answers.
    """
    if options.answers_to is None:
        if options.answers is not None:
            raise UsageError("--answers is for --answers-to FILE: give that, too")
        return None
    if options.searches:
        raise UsageError(
            "--answers-to is for one load: not with --find-rate or --sweep"
        )
    file = read_answers(options.answers_to, new=True)
    prompts = answer_prompts(options.answers or PROMPTS)
    if (baseline := file.baseline) is not None:
        prompts = baseline.prompts
        if options.answers not in {None, len(prompts)}:
            raise UsageError(
                f"{file.path} holds {counted(len(prompts), 'prompt')}, which each "
                f"setting is asked: leave out --answers {options.answers}"
            )
    elif file.lines:
        raise UsageError(
            f"{file.path}: its first server told no token ids, so no other setting can "
            "be asked the same; take a new file"
        )
    return Questions(file=file, prompts=prompts, name=options.name)


async def ask_beside(
    session: LoadSession, model: str, questions: Questions
) -> AskedBeside:
    """Ask the server that was loaded, record the hashes and add to the file."""
    file = questions.file
    times = 1 if file.lines else BASELINE_TIMES
    fault, comparison, baseline = None, None, file.baseline
    rounds: list[AskedRound] = []
    try:
        for _ in range(times):
            asked = await ask_answers(
                session.target, model, questions.prompts, baseline=baseline
            )
            rounds.append(asked)
            baseline = baseline or asked.baseline
        for asked in rounds:  # all or none: half a baseline knows no noise of its own
            session.take(asked.hashes)
        comparison = _against_first(file, rounds[0]) if times == 1 else None
        told = _who(session)
        for asked in rounds:
            line = RoundLine(
                name=questions.name,
                session=told[0],
                identity=told[1],
                hashes=asked.hashes,
            )
            file = file.add(asked, line)
    except (SourceError, UsageError) as error:  # the load's result is told all the same
        fault = str(error)
    return AskedBeside(
        path=file.path,
        prompts=len(questions.prompts),
        comparison=comparison,
        fault=fault,
    )


def _who(session: LoadSession) -> tuple[str | None, str]:
    """The id of the recorded session and its identity; if not recorded, one of now."""
    record, database = session.pipeline.record, session.pipeline.database
    if record is not None and record.session_id and database is not None:
        number = int(record.session_id.removeprefix("s"))
        with suppress(StorageError):  # moved away or deleted meanwhile
            if (identity := session_identity(database, number)) is not None:
                return record.session_id, identity
    return None, f"not recorded {token_hex(8)}"


def _against_first(file: AnswerFile, asked: AskedRound) -> AnswerComparison | None:
    first = file.lines[0]
    same = [line.hashes for line in file.lines if line.identity == first.identity]
    return compare_answers(same, asked.hashes)
