"""A session as one page that needs no network."""

from inferwatch.export.html.gather import gather
from inferwatch.export.html.page import page
from inferwatch.export.recording import Recording
from inferwatch.export.target import Target


def write_html(recording: Recording, target: Target) -> None:
    """Summary and charts."""
    with target.file() as out:
        for part in page(recording, gather(recording)):
            out.write(part.encode())
            out.write(b"\n")
