"""Renders documents as one HTML page without scripts or network requests."""

from collections.abc import Iterable, Iterator
from importlib.resources import files

from inferwatch.formatting import UNKNOWN
from inferwatch.printing.destination import Destination
from inferwatch.printing.document import (
    Block,
    Cards,
    Cell,
    Charts,
    Code,
    FactList,
    Folded,
    Item,
    Items,
    PageSection,
    PrintedColumn,
    PrintedHeading,
    RowGroup,
    Sentence,
    Table,
)
from inferwatch.visible import as_html, strict_json

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(
    title: str, blocks: Iterable[Block], kind: str = "", heading: str = ""
) -> Iterator[str]:
    """The parts of a page, in order; ``kind`` is its class in the style sheet."""
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{as_html(title)} · inferwatch</title><style>{style}</style>"
    yield f"</head><body{_class(kind)}>"
    yield f"<h1>{as_html(heading or title)}</h1>"
    for block in blocks:
        yield from block_html(block)
    yield "</body></html>\n"


def write_page(parts: Iterable[str], destination: Destination) -> None:
    """Write the page, which needs no network.

    Raises:
        UsageError: the file exists already or cannot be written.
    """
    with destination.file() as out:
        for part in parts:
            out.write(f"{part}\n".encode())


def all_numbers(summary: str, facts: object) -> PageSection:
    code = Code(text=strict_json(facts, indent=1))
    return PageSection(
        kind="numbers",
        blocks=[PrintedHeading("All numbers"), Folded(summary=summary, blocks=[code])],
    )


def block_html(block: Block) -> Iterator[str]:  # noqa: C901 - a case for each
    match block:
        case PrintedHeading(text=text, level=level):
            yield f"<h{level}>{as_html(text)}</h{level}>"
        case Sentence(text=text, tone=tone, is_lead=is_lead):
            kind = _class("lead" * is_lead, tone)
            yield f"<p{kind}>{as_html(text)}</p>"
        case Items(items=items, kind=kind):
            yield f"<ul{_class(kind)}>"
            yield from map(_item, items)
            yield "</ul>"
        case Table():
            yield from _table(block)
        case FactList(pairs=pairs):
            yield '<table class="facts">'
            for name, value in pairs:
                yield f"<tr><td>{as_html(name)}</td><td>{_inside(value)}</td></tr>"
            yield "</table>"
        case Cards(pairs=pairs):
            cells = (
                f"<div><b>{as_html(value.strip())}</b><span>{as_html(name)}</span></div>"
                for name, value in pairs
            )
            yield f'<div class="cards">{"".join(cells)}</div>'
        case Code(text=text, kind=kind):
            yield f"<pre{_class(kind)}>{as_html(text)}</pre>"
        case Charts() | PageSection() | Folded():
            yield from _containing(block)
        case _:
            return


def _containing(block: Charts | PageSection | Folded) -> Iterator[str]:
    match block:
        case Charts(figures=figures):
            yield '<div class="charts">'
            yield from figures
            yield "</div>"
        case PageSection(kind=kind, blocks=blocks, tag=tag):
            yield f"<{tag}{_class(kind)}>"
            for each in blocks:
                yield from block_html(each)
            yield f"</{tag}>"
        case Folded(summary=summary, blocks=blocks, about=about, is_open=is_open):
            heading = _sign(summary, about) if about else as_html(summary)
            yield f"<details{' open' * is_open}><summary>{heading}</summary>"
            for each in blocks:
                yield from block_html(each)
            yield "</details>"


def _item(each: Item) -> str:
    if not each.sign:
        return f"<li>{as_html(each.text)}</li>"
    of = f"<b>{as_html(each.of)}</b> " if each.of else ""
    text = as_html(each.text)
    if each.folded:
        paragraphs = "".join(f"<p>{as_html(one)}</p>" for one in each.folded)
        text = f"<details><summary>{text}</summary>{paragraphs}</details>"
    return f"<li{_class(each.tone)}>{_sign(each.sign)}<div>{of}{text}</div></li>"


def _sign(text: str, about: str = "") -> str:
    aside = f' <span class="unit">{as_html(about)}</span>' if about else ""
    return f'<span class="sign">{as_html(text)}</span>{aside}'


def _table(table: Table) -> Iterator[str]:
    """A table as HTML, in a box of its own that scrolls if it is too wide."""
    columns = table.columns
    yield '<div class="wide">'
    yield f"<table{_class(table.kind)}>"
    if any(each.head for each in columns):
        yield f"<thead><tr>{''.join(map(_head, columns))}</tr></thead>"
    for group in table.groups:
        yield f"<tbody{_class(group.tone)}>"
        if group.head or group.marks:
            yield _group_head(group, len(columns))
        for row in group.rows:
            yield f"<tr>{''.join(map(_cell, row.cells, columns))}</tr>"
            for note in row.notes:
                yield (
                    f'<tr class="note"><td colspan="{len(columns)}">↳ '
                    f"{as_html(note)}</td></tr>"
                )
        yield "</tbody>"
    yield "</table></div>"


def _head(column: PrintedColumn) -> str:
    name = as_html(column.head)
    if column.is_name:
        return f'<th class="side" title="{name}"><span>{name}</span></th>'
    return f"<th>{name}</th>"


def _group_head(group: RowGroup, columns: int) -> str:
    head = _sign(group.head, group.about) if group.head else ""
    return (
        f'<tr class="group"><th colspan="{columns - 1}" scope="rowgroup">{head}</th>'
        f'<th class="scale"><div class="xs">{group.marks}</div></th></tr>'
    )


def _cell(value: str | Cell, column: PrintedColumn) -> str:
    tone = value.tone if isinstance(value, Cell) else ""
    if column.kind == "head":
        return f'<th scope="row">{_inside(value)}</th>'
    of = f' data-of="{as_html(column.head)}"' if column.is_name and column.kind else ""
    return f"<td{_class(column.kind, tone)}{of}>{_inside(value)}</td>"


def _inside(value: str | Cell | None) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return as_html(" ".join(value.split()))
    aside = f' <span class="unit">{as_html(value.aside)}</span>' if value.aside else ""
    text = as_html(value.text)
    if value.folded:
        text = f"<details><summary>{as_html(value.folded)}</summary>{text}</details>"
    return f"{text}{aside}{value.markup}"


def _class(*names: str) -> str:
    classes = " ".join(filter(None, names))
    return f' class="{classes}"' if classes else ""
