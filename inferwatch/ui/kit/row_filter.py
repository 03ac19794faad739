"""The language of filters: words, and fields compared with values.

    ttft>1s state:queued prompt>1k f3a9
    slower than 2s

All of it must hold. The columns of a table say which fields there are; any other word
is looked for in what the table calls the words of a row. What is unknown of a row
matches no comparison. A table may know phrases: each stands for a field and a sign,
and for another field if that stands before it (``e2el slower than 2s``).
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Generic, TypeVar

Row = TypeVar("Row")
Test = Callable[[Row], bool]


class FieldKind(Enum):
    """How a field compares, as text for error messages."""

    TEXT = "a text"
    DURATION = "a time such as 50ms, 1s or 250us"
    COUNT = "a number such as 100 or 1k"
    NUMBER = "a number such as 0.7"
    BYTES = "a size such as 500kB or 2MB"


UNITS = {
    FieldKind.DURATION: {
        "ms": 1e-3,
        "s": 1.0,
        "us": 1e-6,
        "µs": 1e-6,
        "min": 60.0,
        "h": 3_600.0,
    },
    FieldKind.COUNT: {"": 1.0, "k": 1e3, "m": 1e6},
    FieldKind.NUMBER: {"": 1.0},
    FieldKind.BYTES: {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9},
}
"""Factors of the units, in lower case."""
COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ":": operator.eq,
}
SAME = ("=", ":")
TERM = re.compile(r"([a-z]\w*)(>=|<=|>|<|=|:)(.*)", re.IGNORECASE)
NUMBER = re.compile(r"(-?(?:\d+\.?\d*|\.\d+))([^\d.]*)")
COUNTED = (FieldKind.COUNT, FieldKind.NUMBER)
"""Kinds that can equal a typed number."""
NO_WORD = re.compile(r"[^\w]+")
Phrases = Mapping[str, tuple[str, str]]
"""Two words and the field and sign they stand for."""


@dataclass(frozen=True, slots=True)
class FilterField(Generic[Row]):
    """A property of a row that filters can use."""

    name: str
    value: Callable[[Row], float | str | None]
    kind: FieldKind = FieldKind.TEXT
    choices: Sequence[str] = ()
    """All possible texts; a prefix of one, or of a word in it, is enough."""
    also: Sequence[str] = ()
    at_least: Callable[[Row], float | None] | None = None
    """Lower bound of an unknown value, enough to satisfy ``>``."""

    @property
    def begun(self) -> str:
        """The field's name with the sign that mostly follows it."""
        return f"{self.name}{':' if self.kind is FieldKind.TEXT else '>'}"


@dataclass(frozen=True, slots=True)
class RowFilter(Generic[Row]):
    """A condition on rows; without tests it admits all."""

    text: str = ""
    """The valid part of the typed text."""
    tests: Sequence[Test[Row]] = ()

    def admits(self, row: Row) -> bool:
        return all(test(row) for test in self.tests)


@dataclass(frozen=True, slots=True)
class FilterReading(Generic[Row]):
    """The filter of a typed text, and what is wrong with the rest of it."""

    filter: RowFilter[Row]
    fault: str = ""
    hint: str = ""
    """What the word being typed still needs."""


class _Fault(Exception):  # noqa: N818 - told beside the text, not raised to anybody
    """A word is invalid; the message suggests a valid one."""

    def __init__(self, text: str, *, may_go_on: bool = False) -> None:
        super().__init__(text)
        self.may_go_on = may_go_on
        """The word may become valid as it is typed."""


class FilterGrammar(Generic[Row]):
    """Parses the filters of a table."""

    def __init__(
        self,
        fields: Iterable[FilterField[Row]],
        words_of: Callable[[Row], Iterable[str | None]],
        phrases: Phrases | None = None,
    ) -> None:
        self.fields = {each.name: each for each in fields}
        self._named = {
            name: each for each in self.fields.values() for name in each.also
        }
        self._named.update(self.fields)
        self._words_of = words_of
        self._phrases = phrases or {}

    def read(self, text: str, *, typing: bool = False) -> FilterReading[Row]:
        """Parse a filter.

        While typing, an unfinished last word is ignored.
        """
        terms = list(self._terms(text, typing=typing))
        tests: dict[str, Test[Row]] = {}
        wrong = hint = ""
        for place, word in enumerate(terms):
            goes_on = not text[-1:].isspace() or not text.rstrip().endswith(word)
            being_typed = typing and goes_on and place == len(terms) - 1
            try:
                if being_typed and self._begins_field(word):
                    continue
                tests[word] = self._test(word)
            except _Fault as fault:
                if being_typed and fault.may_go_on:
                    hint = str(fault)
                else:
                    wrong = wrong or str(fault)
        row_filter = RowFilter(" ".join(tests), tuple(tests.values()))
        return FilterReading(row_filter, wrong, hint)

    def _terms(self, text: str, *, typing: bool) -> Iterator[str]:
        """Yield a filter's words, phrases replaced; an unfinished one is left out."""
        words, end = text.split(), " " if text[-1:].isspace() else ""
        place = 0
        while place < len(words):
            field = words[place].lower() if words[place].lower() in self._named else ""
            for at, whose in ((place + 1, field), (place, "")):
                if at == place + 1 and not field:
                    continue
                rest = " ".join(words[at:]).lower() + end
                begun = (each for each in self._phrases if each.startswith(rest))
                if typing and rest.strip() and any(begun):
                    return
                phrase = self._phrases.get(" ".join(words[at : at + 2]).lower())
                if phrase is not None:
                    value, place = _value_at(words, at + 2)
                    yield f"{whose or phrase[0]}{phrase[1]}{value}"
                    break
            else:
                yield words[place]
                place += 1

    def complete(self, text: str) -> str | None:
        """Return the text with its last word completed, None if nothing fits."""
        if not text or text[-1].isspace():
            return None
        last_two = text.split()[-2:]
        for typed in dict.fromkeys((" ".join(last_two), last_two[-1])):
            whole = next(self._completions(typed.lower()), "")
            if len(whole) > len(typed):
                return text + whole[len(typed) :]
        return None

    def _completions(self, word: str) -> Iterator[str]:
        parts = TERM.fullmatch(word)
        if parts is None:
            names = (each for each in self.fields if each.startswith(word))
            yield from (self.fields[each].begun for each in names)
            yield from (each for each in self._phrases if each.startswith(word))
            return
        name, sign, value = parts.groups()
        field = self._named.get(name)
        if field is None or not value:
            return
        ends = (each for choice in field.choices for each in _ends(choice))
        begun = (each for each in ends if each.startswith(value))
        yield from (f"{name}{sign}{each}" for each in begun)
        number = NUMBER.fullmatch(value)
        if number is not None and field.kind in UNITS:
            digits, unit = number.groups()
            units = (each for each in UNITS[field.kind] if each.startswith(unit))
            yield from (f"{name}{sign}{digits}{each}" for each in units)

    def _begins_field(self, word: str) -> bool:
        return any(each.startswith(word.lower()) for each in self._named)

    def _test(self, word: str) -> Test[Row]:
        parts = TERM.fullmatch(word)
        if parts is None:
            return _has_word(word.lower(), self._words_of)
        name, sign, value = parts.groups()
        field = self._named.get(name.lower())
        if field is None:
            raise _Fault(f"unknown field {name}: {self._names_like(name.lower())}")
        if field.kind is FieldKind.TEXT:
            return _text_test(field, sign, value.lower())
        return _number_test(field, sign, value.lower())

    def _names_like(self, name: str) -> str:
        """Return all field names, similar ones first."""
        matches = get_close_matches(name, self.fields, n=3, cutoff=0.5)
        return ", ".join(dict.fromkeys((*matches, *self.fields)))


def _has_word(word: str, words_of: Callable[[Row], Iterable[str | None]]) -> Test[Row]:
    return lambda row: any(word in each.lower() for each in words_of(row) if each)


def _text_test(field: FilterField[Row], sign: str, value: str) -> Test[Row]:
    if sign not in SAME:
        raise _Fault(f"{field.name} is not a number: {field.begun}{value}")
    examples = ", ".join(field.choices) or "a text"
    if not value:
        raise _Fault(f"{field.begun} needs {examples}", may_go_on=True)
    if not field.choices:
        return lambda row: value in str(field.value(row) or "").lower()
    sought = NO_WORD.sub("_", value)
    if not any(_names(each, sought) for each in field.choices):
        raise _Fault(f"no {field.name} is called {value}: {examples}")
    return lambda row: _names(str(field.value(row) or ""), sought)


def _ends(choice: str) -> Iterator[str]:
    """Yield a choice, then what is left of it without its first word, and so on.

    >>> list(_ends("queue_kv_blocks"))
    ['queue_kv_blocks', 'kv_blocks', 'blocks']
    """
    words = choice.split("_")
    return ("_".join(words[place:]) for place in range(len(words)))


def _names(choice: str, prefix: str) -> bool:
    return any(each.startswith(prefix) for each in _ends(choice))


def _value_at(words: Sequence[str], place: int) -> tuple[str, int]:
    """Return a value, joined with its unit if that is a word, and the index after it.

    >>> _value_at(["slower", "than", "2", "s", "f3"], 2)
    ('2s', 4)
    """
    value, unit = (*words[place : place + 2], "", "")[:2]
    if value[-1:].isdigit() and unit.lower() in UNITS[FieldKind.DURATION]:
        return value + unit, place + 2
    return value, place + 1


def _number_test(field: FilterField[Row], sign: str, operand: str) -> Test[Row]:
    if sign in SAME and field.kind not in COUNTED:
        raise _Fault(f"{field.name} takes > or <: {field.name}>{operand}")
    limit, compare = _number(field, sign, operand), COMPARED[sign]
    asks_for_more = sign.startswith(">")
    value_of = (asks_for_more and field.at_least) or field.value

    def test(row: Row) -> bool:
        value = value_of(row)
        return value is not None and compare(float(value), limit)

    return test


def _number(field: FilterField[Row], sign: str, text: str) -> float:
    units = UNITS[field.kind]
    needs = f"{field.name}{sign} needs {field.kind.value}"
    if text in ("", "-"):
        raise _Fault(needs, may_go_on=True)
    parts = NUMBER.fullmatch(text.replace(",", ""))
    if parts is None:
        raise _Fault(f"{text} is not a number: {needs}", may_go_on=text == ".")
    digits, unit = parts.groups()
    if unit in units:
        return float(digits) * units[unit]
    if not float(digits) and not unit:
        return 0.0
    begun = any(each.startswith(unit) for each in units)
    wrong = f"{unit} is not a unit" if unit else f"{text} has no unit"
    raise _Fault(f"{wrong}: {needs}", may_go_on=begun)
