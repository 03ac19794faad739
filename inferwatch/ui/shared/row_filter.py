"""The language of filters: words, and fields compared with values.

    ttft>1s state:queued prompt>1k f3a9

All of it must hold. The columns of a table say which fields there are; any other word
is looked for in what the table calls the words of a row. What is unknown of a row
matches no comparison.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Generic, TypeVar

Row = TypeVar("Row")
Test = Callable[[Row], bool]


class FieldKind(Enum):
    """What a field is compared with, as people are told who wrote it wrong."""

    TEXT = "a text"
    DURATION = "a time such as 50ms, 1s or 250us"
    COUNT = "a number such as 100 or 1k"
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
    FieldKind.BYTES: {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9},
}
"""What one of each unit is, in lower case."""
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
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]*)")


@dataclass(frozen=True, slots=True)
class FilterField(Generic[Row]):
    """Something of a row that it can be listed by."""

    name: str
    value: Callable[[Row], float | str | None]
    kind: FieldKind = FieldKind.TEXT
    choices: Sequence[str] = ()
    """All texts there are; the first letters of one will do."""
    at_least: Callable[[Row], float | None] | None = None
    """What an unknown value will be at least: more than ``>`` asks for will do."""

    @property
    def begun(self) -> str:
        """Its name and what mostly follows."""
        return f"{self.name}{':' if self.kind is FieldKind.TEXT else '>'}"


@dataclass(frozen=True, slots=True)
class RowFilter(Generic[Row]):
    """Which rows to list; as it is, all."""

    text: str = ""
    """As typed, of what counts."""
    tests: Sequence[Test[Row]] = ()

    def admits(self, row: Row) -> bool:
        """All that is asked for is so."""
        return all(test(row) for test in self.tests)


@dataclass(frozen=True, slots=True)
class FilterReading(Generic[Row]):
    """What a text came to: a filter of what makes sense in it, and what does not."""

    filter: RowFilter[Row]
    fault: str = ""


class _Fault(Exception):  # noqa: N818 - told beside the text, not raised to anybody
    """A word makes no sense; says what would."""

    def __init__(self, text: str, *, may_go_on: bool = False) -> None:
        super().__init__(text)
        self.may_go_on = may_go_on
        """It makes none yet: more is being typed."""


class FilterGrammar(Generic[Row]):
    """Reads what is typed over a table."""

    def __init__(
        self,
        fields: Iterable[FilterField[Row]],
        words_of: Callable[[Row], Iterable[str | None]],
    ) -> None:
        self.fields = {each.name: each for each in fields}
        self._words_of = words_of

    def read(self, text: str, *, typing: bool = False) -> FilterReading[Row]:
        """The filter that a text stands for.

        While somebody is typing, a last word that may become something counts for
        nothing yet.
        """
        words = text.split()
        last = len(words) - 1 if typing and not text[-1:].isspace() else None
        tests: dict[str, Test[Row]] = {}
        wrong = ""
        for place, word in enumerate(words):
            try:
                if place == last and self._begins_field(word):
                    continue
                tests[word] = self._test(word)
            except _Fault as fault:
                if place != last or not fault.may_go_on:
                    wrong = wrong or str(fault)
        return FilterReading(RowFilter(" ".join(tests), tuple(tests.values())), wrong)

    def complete(self, text: str) -> str | None:
        """The text with its last word completed; None where there is nothing to add."""
        word = "" if not text or text[-1].isspace() else text.rsplit(maxsplit=1)[-1]
        whole = next(self._completions(word.lower()), "") if word else ""
        return text + whole[len(word) :] if len(whole) > len(word) else None

    def _completions(self, word: str) -> Iterator[str]:
        parts = TERM.fullmatch(word)
        if parts is None:
            names = (each for each in self.fields if each.startswith(word))
            yield from (self.fields[each].begun for each in names)
            return
        name, sign, value = parts.groups()
        found = self.fields.get(name)
        if found is None or not value:
            return
        begun = (each for each in found.choices if each.startswith(value))
        yield from (f"{name}{sign}{each}" for each in begun)
        number = NUMBER.fullmatch(value)
        if number is not None and found.kind in UNITS:
            digits, unit = number.groups()
            units = (each for each in UNITS[found.kind] if each.startswith(unit))
            yield from (f"{name}{sign}{digits}{each}" for each in units)

    def _begins_field(self, word: str) -> bool:
        return any(each.startswith(word.lower()) for each in self.fields)

    def _test(self, word: str) -> Test[Row]:
        parts = TERM.fullmatch(word)
        if parts is None:
            return _has_word(word.lower(), self._words_of)
        name, sign, value = parts.groups()
        found = self.fields.get(name.lower())
        if found is None:
            raise _Fault(f"unknown field {name}: {self._names_like(name.lower())}")
        if found.kind is FieldKind.TEXT:
            return _text_test(found, sign, value.lower())
        return _number_test(found, sign, value.lower())

    def _names_like(self, name: str) -> str:
        """All of them, those first that may have been meant."""
        meant = get_close_matches(name, self.fields, n=3, cutoff=0.5)
        return ", ".join(dict.fromkeys((*meant, *self.fields)))


def _has_word(word: str, words_of: Callable[[Row], Iterable[str | None]]) -> Test[Row]:
    return lambda row: any(word in each.lower() for each in words_of(row) if each)


def _text_test(field: FilterField[Row], sign: str, wanted: str) -> Test[Row]:
    if sign not in SAME:
        raise _Fault(f"{field.name} is not a number: {field.begun}{wanted}")
    examples = ", ".join(field.choices) or "a text"
    if not wanted:
        raise _Fault(f"{field.begun} needs {examples}", may_go_on=True)
    if not field.choices:
        return lambda row: wanted in str(field.value(row) or "").lower()
    if not any(each.startswith(wanted) for each in field.choices):
        raise _Fault(f"no {field.name} is called {wanted}: {examples}")
    return lambda row: str(field.value(row) or "").startswith(wanted)


def _number_test(field: FilterField[Row], sign: str, wanted: str) -> Test[Row]:
    if sign in SAME and field.kind is not FieldKind.COUNT:
        raise _Fault(f"{field.name} takes > or <: {field.name}>{wanted}")
    limit, compare = _number(field, sign, wanted), COMPARED[sign]
    asks_for_more = sign.startswith(">")
    value_of = (asks_for_more and field.at_least) or field.value

    def test(row: Row) -> bool:
        value = value_of(row)
        return value is not None and compare(float(value), limit)

    return test


def _number(field: FilterField[Row], sign: str, text: str) -> float:
    units = UNITS[field.kind]
    needs = f"{field.name}{sign} needs {field.kind.value}"
    if not text:
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
