"""Renders documents as GitHub's Markdown; text from outside never becomes markup."""

import re
from collections.abc import Callable, Iterable, Iterator

from inferwatch.printing.document import (
    Block,
    Code,
    FactList,
    Folded,
    Item,
    Items,
    Plot,
    PrintedHeading,
    Sentence,
    Table,
    item_text,
    text_of,
)
from inferwatch.visible import visible

MOST_CHARACTERS = 60_000
"""GitHub allows 65,536 characters per comment, and the poster may add some."""
MOST_OF_A_NAME = 60
MOST_OF_A_SENTENCE = 1_000
LEFT_OUT = "_The rest was left out: it would not fit into a comment._"
_MARKUP = re.compile(r"([\\`*_\[\]~$])")
_JOINER = "\N{WORD JOINER}"
"""Has no width; it cannot occur in escaped text, as that makes it visible."""
_ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    _JOINER: "&#8288;",
}
_BEGINS = re.compile(r"^(\s*\d*)([#+=.)-])")
"""Beginnings of a heading, a list item or a rule."""
_CALLS = re.compile(r"(?i)([@#]|\bwww|\bGH-)(?=[\w.])")
"""What GitHub turns into a mention, an issue reference or a link."""
_COMMANDS = re.compile(r"`(inferwatch (?:[^`'\"]|'[^']*'|\"[^\"]*\")*)`")
"""An inferwatch command as quoted by `shlex`; backticks from outside are in quotes."""


def document_markdown(blocks: Iterable[Block]) -> str:
    """As many blocks as fit, in order, with a remark if some are left out."""
    room = MOST_CHARACTERS - len(LEFT_OUT)
    kept: list[str] = []
    for part in filter(None, map(block_markdown, blocks)):
        room -= len(part) + 2
        if room < 0:
            return "\n\n".join([*kept, LEFT_OUT])
        kept.append(part)
    return "\n\n".join(kept)


def block_markdown(block: Block) -> str:  # noqa: C901, PLR0911 - a case for each
    """One block; empty if it can only be shown on an HTML page."""
    match block:
        case PrintedHeading(text=text, level=level):
            return f"{'#' * level} {escaped(text)}"
        case Sentence():
            return _sentence(block)
        case Items(items=items):
            return "\n".join(map(_item, items))
        case FactList(pairs=pairs):
            return "\n".join(f"- {prose(f'{k}: {text_of(v)}')}" for k, v in pairs)
        case Table():
            return _table(block)
        case Plot(rows=rows):
            lines = ("".join(text for text, _ in row).rstrip() for row in rows)
            return _fenced("\n".join(lines)) if rows else ""
        case Code(text=text, language=language):
            return _fenced(text, language)
        case Folded(summary=summary, blocks=blocks):
            body = "\n\n".join(filter(None, map(block_markdown, blocks)))
            heading = _safe(_apart(summary))
            if not body:
                return ""
            return f"<details><summary>{heading}</summary>\n\n{body}\n\n</details>"
        case _:
            return ""


def _sentence(each: Sentence) -> str:
    mark = "**" if each.is_lead else "_" if each.is_aside else ""
    return f"{mark}{prose(each.text)}{mark}"


def _item(each: Item) -> str:
    doubt = "**!** " if each.is_doubt else ""
    text = prose(item_text(each))
    if each.alarm:
        text = text.replace(each.alarm, f"**{each.alarm}**", 1)
    return f"- {doubt}{text}"


def _table(table: Table) -> str:
    """The heads and rows of a table; groups need a column of their own."""
    rows = [row for group in table.groups for row in group.rows]
    if not rows:
        return ""
    columns = table.columns
    head = [_quoted(shortened_name(each.head)) for each in columns]
    marks = [":---" if each.is_left else "---:" for each in columns]
    cells = [
        [
            _quoted(shortened_name(text) if table.has_names else text)
            for text in map(text_of, row.cells)
        ]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, marks, *cells))


def prose(text: str) -> str:
    r"""One line, in which inferwatch commands are code and nothing else is markup.

    >>> print(prose("first *c*, then `inferwatch load --like 'a`b'`"))
    first \*c\*, then ``inferwatch load --like 'a`b'``
    """
    return _escaped(text, _pieces)


def escaped(text: str) -> str:
    r"""Text from outside as one line or a table cell, without any markup.

    >>> print(escaped("a|b `c` <b> @team\n#12"))
    a&#124;b \`c\` &lt;b&gt; @&#8288;team␊#&#8288;12
    """
    return _escaped(text, lambda cut: [_quoted(cut)])


def _escaped(text: str, pieces: Callable[[str], Iterable[str]]) -> str:
    return _BEGINS.sub(
        r"\1\\\2", "".join(pieces(_cut(visible(text), MOST_OF_A_SENTENCE)))
    )


def _pieces(text: str) -> Iterator[str]:
    for place, piece in enumerate(_COMMANDS.split(text)):
        yield _code(piece) if place % 2 else _quoted(piece)


def _code(command: str) -> str:
    fence = _fence(command, "`")
    return f"{fence}{command}{fence}"


def _quoted(text: str) -> str:
    marked = _MARKUP.sub(r"\\\1", _apart(text))
    return _safe(marked)


def _safe(text: str) -> str:
    return "".join(_ENTITIES.get(each, each) for each in text)


def _apart(text: str) -> str:
    """Break up mentions and links so that GitHub does not activate them."""
    return _CALLS.sub(rf"\1{_JOINER}", text.replace("://", f":{_JOINER}//"))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened_name(text: str) -> str:
    return _cut(visible(text), MOST_OF_A_NAME)


def _fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    fence = _fence(text, "```")
    return f"{fence}{language}\n{text}\n{fence}"


def _fence(text: str, shortest: str) -> str:
    while shortest in text:
        shortest += "`"
    return shortest
