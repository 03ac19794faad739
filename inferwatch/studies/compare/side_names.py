"""What the sides of a comparison are called where there is little room."""

from collections.abc import Iterable

from inferwatch.formatting import UNKNOWN
from inferwatch.studies.compare.comparison import SessionPair
from inferwatch.studies.compare.reading.session_numbers import ComparedSide
from inferwatch.studies.compare.report import engine_settings
from inferwatch.studies.compare.runs.sides import label_of

MOST_FLAGS = 2
LONG_NAME = LONGEST_VALUE = 24


def side_texts(pair: SessionPair) -> tuple[str, str]:
    """Both sides by the flags that differ, or by name where none or too many do."""
    flags = _few_flags(pair)
    if not flags:
        return pair.a.name, pair.b.name
    a, b = (
        " and ".join(f"{flag} {values[n]}" for flag, values in flags) for n in (0, 1)
    )
    return a, b


def _few_flags(pair: SessionPair) -> list[tuple[str, tuple[str, str]]]:
    """The flags that differ, if both sides can be called by them: few, and short."""
    flags = engine_settings(pair)
    long = any(len(value) > LONGEST_VALUE for _, values in flags for value in values)
    return [] if long or len(flags) > MOST_FLAGS else flags


def second_text(pair: SessionPair, text: str) -> str:
    """The second side of a sentence: without the flag's name, if only one differs."""
    flags = _few_flags(pair)
    return flags[0][1][1] if len(flags) == 1 else text


def short_names(sides: Iterable[ComparedSide], width: int) -> list[str]:
    """Names that differ in so many columns: the names, else ids, else their ends."""
    every = list(sides)
    names = [each.name for each in every]
    ids = [
        label_of([run.row.id for run in each.runs], each.first.row.id) for each in every
    ]
    for texts in (names, ids):
        if max(map(len, texts)) <= width and len(set(texts)) == len(texts):
            return texts
    return [n if len(n) <= width else f"…{n[-max(width - 1, 1) :]}" for n in names]


def heads(pair: SessionPair, width: int) -> tuple[str, str]:
    """Heads of the two columns: the short name, and the value of the one flag."""
    flags = _few_flags(pair)
    values = flags[0][1] if len(flags) == 1 else (UNKNOWN, UNKNOWN)
    texts = []
    for n, each in enumerate(values):
        room = width - len(each) - 2
        short = short_names((pair.a, pair.b), max(room, 3))[n]
        with_value = f"{short}: {each}"
        fits = each != UNKNOWN and len(with_value) <= width
        texts.append(with_value if fits else short_names((pair.a, pair.b), width)[n])
    return texts[0], texts[1]


def long_heads(pair: SessionPair) -> tuple[str, str]:
    """Heads with room for the flags' names: ``s8, max_num_seqs 4``."""
    flags = _few_flags(pair)
    a, b = (
        ", ".join([name, *(f"{flag} {values[n]}" for flag, values in flags)])
        for n, name in enumerate(short_names((pair.a, pair.b), LONG_NAME))
    )
    return a, b
