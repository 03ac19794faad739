"""A page as a browser would take it."""

import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def shown_by_browser(page: Path, profile: Path) -> Page:
    """What a real browser made of a file, without a complaint."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-sync"),
            f"--user-data-dir={profile / 'profile'}",
            *("--enable-logging=stderr", "--hide-scrollbars"),
            *("--window-size=1500,1000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert ":CONSOLE" not in done.stderr
    return Page(done.stdout)
