"""Prompts from a file of JSON lines or ShareGPT's JSON; read, never recorded.

===================================  ==============================================
``{"prompt": "..."}``                one question
``{"messages": [{"role": ...}]}``    a chat up to its last question
``{"conversations": [{"from": ...}]}``  ShareGPT's: its first question
===================================  ==============================================

Each may have ``output_tokens``. For conversations, every question of a chat is a turn
of its own. A file that begins with ``[`` is a single list of such rows.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

Messages = tuple[dict[str, Any], ...]
"""Messages of a chat in the API's form."""
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
NAMES = {
    "human": USER,
    "user": USER,
    "system": SYSTEM,
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant"), ASSISTANT),
}
"""Roles by their names in ShareGPT."""


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class DatasetError(ValueError):
    """The file has no readable prompts; the message can be shown to users."""


class DatasetRow(NamedTuple):
    """A row of the file: its questions, turn by turn, and recorded answers."""

    questions: tuple[str, ...]
    answers: tuple[str | None, ...] = ()
    """None where unknown; only their length matters."""
    said: Messages = ()
    """Messages before the first question."""
    output_tokens: int | None = None


class _Message(msgspec.Struct):
    """A message of an OpenAI-style chat."""

    role: str
    content: str


class _ShareGptMessage(msgspec.Struct):
    """A message of a ShareGPT conversation."""

    value: str
    speaker: str = msgspec.field(name="from")


class _Row(msgspec.Struct):
    """A row of the file; exactly one of the first three fields is set."""

    prompt: str | None = None
    messages: list[_Message] | None = None
    conversations: list[_ShareGptMessage] | None = None
    output_tokens: int | None = None


_row = msgspec.json.Decoder(_Row)


def read_dataset(path: Path, *, turns: bool = False) -> list[DatasetRow]:
    """The rows of a file; with ``turns``, each question of a chat is a turn.

    Raises:
        DatasetError: it cannot be read, or has no question.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    try:
        read = (_parsed(row, turns=turns) for row in _rows(data))
        rows = [row for row in read if row is not None]
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not rows:
        raise DatasetError(f"{path}: no row of it has a prompt")
    return rows


def _rows(data: bytes) -> Iterator[_Row]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith(b"["):
        try:
            yield from msgspec.json.decode(data, type=list[_Row])
        except UNREADABLE as error:
            raise DatasetError(f"not a list of rows: {_why(error)}") from error
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield _of_line(number, line)


def _of_line(number: int, line: bytes) -> _Row:
    try:
        row = _row.decode(line)
    except UNREADABLE as error:
        raise DatasetError(f"line {number}: {_why(error)}") from error
    if row.prompt is None and row.messages is None and row.conversations is None:
        raise DatasetError(f"line {number}: no prompt, messages or conversations")
    return row


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not in UTF-8: `iconv -t UTF-8` converts it"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _parsed(row: _Row, *, turns: bool) -> DatasetRow | None:
    """A row's questions and answers; None without a question."""
    if row.prompt is not None:
        parsed = DatasetRow((row.prompt,)) if row.prompt else None
    elif row.messages is not None:
        messages = [(each.role, each.content) for each in row.messages]
        parsed = _turns(messages) if turns else _last_question(messages)
    else:
        pairs = ((each.speaker, each.value) for each in row.conversations or ())
        parsed = _turns([(NAMES.get(name, name), text) for name, text in pairs])
    return parsed and parsed._replace(output_tokens=row.output_tokens)


def _last_question(messages: list[tuple[str, str]]) -> DatasetRow | None:
    """The last question with everything before it, and the answer if known."""
    places = [at for at, (role, text) in enumerate(messages) if role == USER and text]
    if not places:
        return None
    at = places[-1]
    after = [text for role, text in messages[at + 1 :] if role == ASSISTANT]
    return DatasetRow((messages[at][1],), tuple(after[:1]), _messages(messages[:at]))


def _turns(messages: list[tuple[str, str]]) -> DatasetRow | None:
    """Each question of a chat, with its answer."""
    questions: list[str] = []
    answers: list[str | None] = []
    before = []
    for role, text in messages:
        if role == USER and text:
            questions.append(text)
            answers.append(None)
        elif role == ASSISTANT and questions:
            answers[-1] = text or None
        elif role == SYSTEM and not questions:
            before.append((role, text))
    if not questions:
        return None
    return DatasetRow(tuple(questions), tuple(answers), _messages(before))


def _messages(pairs: Iterable[tuple[str, str]]) -> Messages:
    return tuple({"role": role, "content": text} for role, text in pairs)
