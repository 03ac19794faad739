"""What every page begins with: it asks nobody for anything, and runs nothing."""

from collections.abc import Iterator
from importlib.resources import files

from inferwatch.visible import as_html

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def head(title: str, *styles: str) -> Iterator[str]:
    """Up to the beginning of the body; a style sheet may add to the ones before it."""
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    style = "".join(styles)
    yield f"<title>{as_html(title)} · inferwatch</title><style>{style}</style>"
    yield "</head><body>"


def stylesheet(package: str = "inferwatch.printing.export.html") -> str:
    """The ``style.css`` that lies in a package; the default is that of all pages."""
    return files(package).joinpath("style.css").read_text("utf-8")
