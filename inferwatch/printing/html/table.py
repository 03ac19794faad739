"""A table of the page, wide ones too."""

from collections.abc import Iterable, Iterator, Sequence

from inferwatch.visible import as_html


def table(
    heading: str, names: Sequence[str], rows: Iterable[Iterable[str]]
) -> Iterator[str]:
    """With a heading; the first column says of what a row is and has no name."""
    heads = "".join(f"<th>{name}</th>" for name in names)
    yield f'<h2>{heading}</h2><div class="wide"><table><tr><th></th>{heads}</tr>'
    for row in rows:
        cells = (f"<td>{as_html(' '.join(text.split()))}</td>" for text in row)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"
