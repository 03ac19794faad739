"""What others named is shown, whatever they put into it."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import inferwatch
from inferwatch.visible import as_html, ascii_json, visible, visible_lines

CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))]
BIDI = [
    chr(code)
    for code in range(0x110000)
    if unicodedata.bidirectional(chr(code))
    in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
]
MARKS = ["\u200e", "\u200f", "\u061c"]
HALF = ["\ud83d", "\udc00"]


@pytest.mark.parametrize("character", [*CONTROLS, *BIDI, *MARKS, *HALF], ids=ascii)
def test_what_a_terminal_would_obey_is_shown(character: str) -> None:
    shown = visible(f"a{character}b")

    assert shown.isprintable()
    assert shown.isascii() or shown.encode().decode() == shown
    assert len(shown) > 2


@given(st.text())
def test_every_text_can_be_written_and_holds_no_control(text: str) -> None:
    shown = visible(text)

    assert not any(unicodedata.category(each) in {"Cc", "Cs"} for each in shown)
    assert visible(shown) == shown
    assert visible_lines(text).count("\n") == text.count("\n")


@given(st.text(st.characters(codec="utf-8")))
def test_json_says_the_same_in_printable_ascii(text: str) -> None:
    plain = json.dumps([text], ensure_ascii=False).encode()

    escaped = ascii_json(plain)

    assert json.loads(escaped) == [text]
    assert escaped.decode("ascii").isprintable()


def test_words_of_any_script_stay_as_they_are() -> None:
    text = "größer · 大きい\u3000字 · עברית · می\u200cخواهم · 👩\u200d🔬 · 1\u202f000"

    assert visible(text) == text


def test_on_a_page_nothing_is_markup() -> None:
    assert as_html("<b>\x1b&\u202e\n") == "&lt;b&gt;␛&amp;&lt;U+202E&gt;\n"


def test_json_for_others_is_written_at_one_door() -> None:
    """Only there a number that JSON has no word for is refused."""
    root = Path(inferwatch.__file__).parent
    folders = ("cli", "printing", "studies/tune", "studies/compare/charts")
    compare = root / "studies" / "compare"
    pages = [compare / "page.py", compare / "printed.py", compare / "as_json.py"]
    for folder in folders:
        assert (root / folder).is_dir()
        pages += (root / folder).rglob("*.py")

    found = [path.name for path in pages if "json.dump" in path.read_text()]

    assert found == []
