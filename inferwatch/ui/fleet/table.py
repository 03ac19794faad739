"""The table of servers and the line of their totals."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from textual.binding import Binding, BindingType

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    MILLISECONDS,
    about,
    format_bracket,
    format_count,
    format_in,
    format_rate,
    format_share,
    short_name,
)
from inferwatch.metrics.fleet import (
    FleetServer,
    FleetTotals,
    Trouble,
    latency_of,
    percentile_of,
)
from inferwatch.metrics.number import label_of
from inferwatch.metrics.series.window import Bracket, Latency
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    cells,
    cells_of,
    end_of,
    fit,
    join_whole,
    width_of,
)
from inferwatch.ui.kit.row_filter import FieldKind, FilterField
from inferwatch.ui.kit.table import CursorTable, TableColumn, number_column, share_width
from inferwatch.ui.widgets.limit_texts import of_server
from inferwatch.ui.widgets.status_lines import VerdictLine

MARKS = {
    Trouble.LOST: ("✖", "bad"),
    Trouble.STANDS_OUT: ("▲", "warn"),
    Trouble.SLOW: ("◔", "warn"),
    Trouble.RESTARTED: ("↻", "accent"),
    Trouble.ASKED: ("◌", "accent"),
    Trouble.NONE: ("●", "good"),
}
"""Shape and word agree, so that colour is never the only signal."""
AILING = (Trouble.STANDS_OUT, Trouble.SLOW)
"""What is wrong with servers that answer."""
ITL_KEYS = ("itl_s", "tpot_s")
"""Metrics of the mean gap: of all gaps, else of requests."""


class FleetScope(StrEnum):
    """Which servers are listed."""

    ALL = "all"
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """A server, one of its ranks, or the totals."""

    key: str
    name: str
    server: FleetServer
    state: ServerState
    rank: bool = False
    kv_span: tuple[float, float] | None = None
    """Lowest and highest KV usage, in the totals."""
    remark: str | None = None
    """Text in place of the trouble."""

    @property
    def lost(self) -> bool:
        """Whether the values are old, as the server is lost."""
        return self.server.trouble is Trouble.LOST


def fleet_columns() -> Iterable[TableColumn[FleetRow]]:
    return (
        TableColumn(
            "server",
            "   server",
            18,
            _name,
            value=lambda row: row.server.place,
            ascending=True,
            gap=1,
            least=14,
            grows=4,
            most=36,
            filter=FilterField("name", lambda row: row.server.name),
        ),
        TableColumn(
            "engine",
            "engine",
            15,
            lambda row, _: TextRun(row.server.engine or "", "muted"),
            value=lambda row: row.server.engine,
            ascending=True,
            from_width=170,
            filter=FilterField("engine", lambda row: row.server.engine),
        ),
        TableColumn(
            "model",
            "model",
            20,
            lambda row, _: TextRun(short_name(row.server.model or ""), "muted"),
            value=lambda row: row.server.model,
            ascending=True,
            gap=1,
            from_width=150,
            filter=FilterField("model", lambda row: row.server.model),
        ),
        TableColumn(
            "via",
            "via",
            7,
            lambda row, _: TextRun(_via(row), "muted"),
            value=lambda row: row.state.via.value,
            ascending=True,
            from_width=110,
            filter=FilterField("via", lambda row: row.state.via.value),
        ),
        _count("running", "run", 6, lambda row: row.state.running),
        _count("waiting", "wait", 6, lambda row: row.state.waiting, alarm="warn"),
        TableColumn(
            "kv",
            "KV",
            7,
            _kv,
            value=lambda row: row.state.kv_usage,
            right=True,
            filter=FilterField("kv", _kv_percent, FieldKind.COUNT),
        ),
        *_gpu_columns(),
        TableColumn(
            "acceptance",
            label_of(Speculation.acceptance),
            11,
            _acceptance,
            value=_acceptance_value,
            right=True,
            from_width=112,
            filter=FilterField("acceptance", _acceptance_percent, FieldKind.COUNT),
        ),
        _rate("tok/s", "tok/s", lambda row: row.state.output_tokens_per_s),
        _rate("req/s", "req/s", lambda row: row.state.arrivals_per_s, from_width=96),
        _mean("ttft", "TTFT ms", 8, ("ttft_s",)),
        TableColumn(
            "p99",
            "p99",
            12,
            _p99,
            value=_p99_value,
            right=True,
            filter=FilterField("p99", _p99_value, FieldKind.DURATION),
        ),
        _mean("itl", "ITL ms", 8, ITL_KEYS, from_width=104),
        _count(
            "failed",
            label_of(Flow.failed),
            7,
            lambda row: row.state.failed,
            alarm="bad",
            from_width=124,
        ),
        _count(
            "preempted",
            label_of(Flow.preemptions),
            10,
            lambda row: row.state.preemptions,
            from_width=134,
        ),
        TableColumn(
            "age",
            "age",
            6,
            lambda row, _: TextRun(_age(row), "muted"),
            value=lambda row: row.server.age_ns,
            right=True,
            from_width=118,
        ),
        TableColumn(
            "state",
            " state",
            21,
            _remark,
            value=lambda row: row.server.trouble.gravity,
            least=8,
            filter=FilterField(
                "state",
                lambda row: row.server.trouble.value,
                choices=[each.value for each in Trouble],
            ),
        ),
    )


def _gpu_columns() -> Iterable[TableColumn[FleetRow]]:
    """Yield columns of GPUs, which ranks leave empty."""

    def hbm(row: FleetRow) -> float | None:
        return None if row.rank else row.server.hbm_share

    def power(row: FleetRow) -> float | None:
        return None if row.rank else row.server.power_w

    yield TableColumn(
        "hbm",
        "HBM",
        5,
        lambda row, _: _run(row, format_share(hbm(row)).strip()),
        value=hbm,
        right=True,
        from_width=100,
    )
    yield _rate("power", "W", power, from_width=140)


def known_columns(
    columns: Iterable[TableColumn[FleetRow]], servers: Iterable[FleetServer]
) -> tuple[TableColumn[FleetRow], ...]:
    """Leave out the columns of GPUs and of speculation where no server has them."""
    servers = tuple(servers)
    absent: set[str] = set()
    if not any(each.hbm_share is not None or each.power_w for each in servers):
        absent |= {"hbm", "power"}
    if all(each.state.speculation is None for each in servers):
        absent.add("acceptance")
    return tuple(each for each in columns if each.key not in absent)


def _count(
    key: str,
    title: str,
    width: int,
    value: Callable[[FleetRow], int | None],
    *,
    alarm: str = "",
    from_width: int = 0,
) -> TableColumn[FleetRow]:
    def write(row: FleetRow, count: float | None) -> TextRun:
        ink = alarm if count else ""
        return _run(row, format_count(count).strip(), ink, known=count is not None)

    return number_column(
        key, title, width, value, write, kind=FieldKind.COUNT, from_width=from_width
    )


def _rate(
    key: str,
    title: str,
    value: Callable[[FleetRow], float | None],
    *,
    from_width: int = 0,
) -> TableColumn[FleetRow]:
    def write(row: FleetRow, rate: float | None) -> TextRun:
        return _run(row, format_rate(rate).strip(), known=rate is not None)

    return number_column(
        key, title, 8, value, write, kind=FieldKind.COUNT, from_width=from_width
    )


def _mean(
    key: str, title: str, width: int, metrics: Sequence[str], *, from_width: int = 0
) -> TableColumn[FleetRow]:
    """Return a column with the mean of the first of ``metrics`` whose mean is known."""

    def value(row: FleetRow) -> float | None:
        latencies = (latency_of(row.state, metric) for metric in metrics)
        means = (each.quantiles.mean for each in latencies if each is not None)
        return next((each for each in means if each is not None), None)

    def write(row: FleetRow, mean: float | None) -> TextRun:
        return _run(row, format_in(MILLISECONDS, mean), known=mean is not None)

    return number_column(
        key, title, width, value, write, kind=FieldKind.DURATION, from_width=from_width
    )


def _run(row: FleetRow, text: str, ink: str = "", *, known: bool = True) -> TextRun:
    """Return a cell's text, faint if its value is old or unknown."""
    return TextRun(text, "faint" if row.lost or not known else ink)


def _name(row: FleetRow, width: int) -> Line:
    if row.rank:
        return (cells(f"     rank {row.state.rank}", width, "muted"),)
    if row.kv_span is not None or not row.key:
        return (cells(f"   {row.name}", width, "strong"),)
    glyph, ink = MARKS[row.server.trouble]
    ranks = f" ×{len(row.server.ranks)}" if row.server.ranks else ""
    room = max(width - 3 - len(ranks) - 1, 1)
    named = cells(end_of(row.name, room), min(cells_of(row.name), room), "strong")
    if row.lost:
        named = named._replace(ink="faint")
    rest = width - 3 - cells_of(named.text)
    return TextRun(f" {glyph} ", ink), named, cells(ranks, rest, "muted")


def _shared_host(names: Sequence[str]) -> str:
    """Return the host if servers differ only by port.

    >>> _shared_host(["10.0.0.1:8000", "10.0.0.1:8001"]), _shared_host(["a:1", "b:1"])
    ('10.0.0.1', '')
    """
    hosts = {name.rpartition(":")[0] for name in names}
    return hosts.pop() if len(hosts) == 1 and len(names) > 1 else ""


def _kv(row: FleetRow, width: int) -> TextRun:
    if row.kv_span is None:
        usage = row.state.kv_usage
        return _run(row, format_share(usage).strip(), known=usage is not None)
    least, most = (format_share(each).strip() for each in row.kv_span)
    span = f"{least.removesuffix('%')}–{most}"
    return TextRun(most if least == most or len(span) >= width else span)


def _kv_percent(row: FleetRow) -> float | None:
    usage = row.state.kv_usage
    return None if usage is None else usage * 100


def _acceptance_value(row: FleetRow) -> float | None:
    """Return the share of drafted tokens accepted; None where none were drafted."""
    speculation = row.state.speculation
    return None if speculation is None else speculation.acceptance


def _acceptance_percent(row: FleetRow) -> float | None:
    share = _acceptance_value(row)
    return None if share is None else share * 100


def _acceptance(row: FleetRow, _: int) -> TextRun:
    share = _acceptance_value(row)
    return _run(row, format_share(share).strip(), known=share is not None)


def _p99(row: FleetRow, _: int) -> TextRun:
    latency = latency_of(row.state, "ttft_s")
    value = percentile_of(latency, "p99") if latency is not None else None
    if latency is None or value is None:
        return _run(row, "–", known=False)
    if isinstance(value, Bracket):
        text = format_bracket(value.low, value.high, MILLISECONDS)
    else:
        text = format_in(MILLISECONDS, value)
    if "p99" in latency.quantiles.weak:
        return TextRun(about(f" {text}"), "faint")
    return _run(row, text, _over(latency, value))


def _over(latency: Latency, value: float | Bracket) -> str:
    """Return the warning ink if a latency is surely over its objective, else none."""
    least = value.low if isinstance(value, Bracket) else value
    limit_s = latency.objective_s
    return "warn" if limit_s is not None and least >= limit_s else ""


def _p99_value(row: FleetRow) -> float | None:
    """Return the row's p99 TTFT, or the lower bound of its bracket."""
    latency = latency_of(row.state, "ttft_s")
    value = percentile_of(latency, "p99") if latency is not None else None
    return value.low if isinstance(value, Bracket) else value


def _via(row: FleetRow) -> str:
    return "" if row.rank else row.state.via.value[:6]


def _age(row: FleetRow) -> str:
    if row.rank or row.server.age_ns is None:
        return ""
    return short_age(row.server.age_ns)


def short_age(age_ns: int) -> str:
    """Return an age in one unit.

    >>> short_age(400_000_000), short_age(75_000_000_000), short_age(4_000 * 10**9)
    ('0 s', '1 min', '1 h')
    """
    seconds = age_ns // NS_PER_S
    if seconds < 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 3_600 else f"{seconds // 3_600} h"


def _remark(row: FleetRow, width: int) -> Line:
    """Draw the remark of a row; without one, what is wrong with its server."""
    if row.remark is not None or row.rank:
        text = row.remark or row.state.remark or ""
        return fit((TextRun(" "), TextRun(text, "muted")), width)
    return fit((TextRun(" "), *trouble_line(row.server)), width)


def trouble_line(server: FleetServer) -> Line:
    state, (_, ink) = server.state, MARKS[server.trouble]
    match server.trouble:
        case Trouble.LOST:
            age_ns = server.age_ns
            ago = f" {short_age(age_ns)} ago" if age_ns is not None else ""
            why = f": {state.why}" if state.why else ""
            return (TextRun(f"lost{ago}", ink), TextRun(why, "muted"))
        case Trouble.STANDS_OUT:
            also = f"  {state.why}" if state.why else ""
            return (TextRun(state.remark or "", ink), TextRun(also, "muted"))
        case Trouble.SLOW:
            return (TextRun(state.why or "", ink),)
        case Trouble.RESTARTED:
            ago_s = (server.restarted_ago_ns or 0) / NS_PER_S
            return (TextRun("restarted", ink), TextRun(f" {age_text(ago_s)} ago"))
        case Trouble.ASKED:
            return (TextRun("asked", ink), TextRun(", no answer yet", "muted"))
        case Trouble.NONE:
            limits = of_server(state)
            return (TextRun(limits, "warn"),) if limits else ()


class FleetTable(CursorTable[FleetRow]):
    """The table of servers, those in trouble first, with the ranks of uneven ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "look into", tooltip="All screens of this server"),
        Binding("space", "fold", "ranks", show=False, tooltip="Show or hide its ranks"),
    ]

    scope: StrEnum = FleetScope.ALL

    def __init__(self) -> None:
        self._declared = tuple(fleet_columns())
        super().__init__(self._declared, sorted_by="state")
        self._folded: dict[str, bool] = {}
        """Rows the user folded or unfolded; by default ranks that differ are
        unfolded."""

    def show(self, servers: Sequence[FleetServer]) -> None:
        self.columns = known_columns(self._declared, servers)
        cut = len(_shared_host([each.name for each in servers]))
        self.show_rows(
            [
                FleetRow(
                    key=each.state.source,
                    name=each.name[cut:],
                    server=each,
                    state=each.state,
                )
                for each in servers
            ]
        )

    def action_fold(self) -> None:
        row = self.pointed
        if row is not None and row.server.ranks:
            self._folded[row.server.state.source] = self._unfolded(row)
            self.list_again()

    def key_of(self, row: FleetRow) -> str:
        return row.key

    def is_listed(self, row: FleetRow) -> bool:
        is_all = self.scope is FleetScope.ALL
        return is_all or row.server.trouble is not Trouble.NONE

    def words_of(self, row: FleetRow) -> Iterable[str | None]:
        info = row.state.info
        yield from (row.name, row.state.source, row.server.model, row.server.engine)
        yield from (row.state.remark, row.state.why, info.url if info else None)

    def recency(self, row: FleetRow) -> float:
        """Put rows of equal value in the order of their servers' names."""
        return -row.server.place

    def below(self, row: FleetRow) -> Iterable[FleetRow]:
        """Yield a row for each rank of the server, if that is unfolded."""
        if not self._unfolded(row):
            return
        source = row.server.state.source
        for rank in row.server.ranks:
            key = f"{source} rank {rank.rank}"
            yield FleetRow(key=key, name=key, server=row.server, state=rank, rank=True)

    def empty_text(self) -> TextRun:
        if self.filter.text:
            return TextRun("no server is like that; esc clears the filter", "muted")
        if self.scope is FleetScope.TROUBLE:
            return TextRun("no server is in trouble; e lists all", "good")
        return TextRun("no server has been heard of yet", "muted")

    def _unfolded(self, row: FleetRow) -> bool:
        source = row.server.state.source
        return not self._folded.get(source, not row.server.ranks_differ)


class FleetVerdictLine(VerdictLine):
    """The servers that are lost or in trouble, worst first; without any, the verdict.

    A fleet is as well as its worst server, whatever all of it does together.
    """

    _servers: Sequence[FleetServer] = ()

    def show_servers(self, servers: Sequence[FleetServer]) -> None:
        self._servers = sorted(servers, key=lambda each: -each.trouble.gravity)
        self.redraw()

    def line(self, width: int) -> Line:
        counts = Counter(each.trouble for each in self._servers)
        lost, trouble = counts[Trouble.LOST], sum(counts[each] for each in AILING)
        if not lost and not trouble:
            return super().line(width)
        glyph, ink = MARKS[Trouble.LOST if lost else Trouble.STANDS_OUT]
        parts = [f"{lost} of {len(self._servers)} LOST"] if lost else []
        if trouble:
            of = "" if lost else f" of {len(self._servers)}"
            parts.append(f"{trouble}{of} {'in trouble' if lost else 'IN TROUBLE'}")
        head = (TextRun(f" {glyph} {', '.join(parts)}:", f"{ink} bold"),)
        ill = [e for e in self._servers if e.trouble in {Trouble.LOST, *AILING}]
        told = [
            (TextRun(f" {each.name} ", "strong"), *trouble_line(each)) for each in ill
        ]
        line = join_whole(told, width - width_of(head), ";")
        return fit((*head, *(line or told[0])), width)


class FleetTotalsLine(LinePanel):
    """The totals of all servers, in the columns of the table."""

    _totals: FleetTotals | None = None
    _server: FleetServer | None = None

    def __init__(self) -> None:
        super().__init__()
        self._columns: tuple[TableColumn[FleetRow], ...] = ()

    def show(
        self, totals: FleetTotals, columns: tuple[TableColumn[FleetRow], ...]
    ) -> None:
        self._totals, self._columns = totals, columns
        self.redraw()

    def line(self, width: int) -> Line:
        totals = self._totals
        if totals is None:
            return ()
        together = FleetServer(
            state=totals.state,
            trouble=Trouble.NONE,
            place=0,
            hbm_share=totals.hbm_share,
            power_w=totals.power_w,
        )
        row = FleetRow(
            key="",
            name=f"all {totals.servers}",
            server=together,
            state=totals.state,
            kv_span=totals.kv_span,
            remark=percentile_source(totals),
        )
        line: list[TextRun] = []
        for column, size in share_width(self._columns, width):
            written = column.write(row, size)
            if isinstance(written, TextRun):
                room = max(size - column.gap, 1)
                line.append(cells(written.text, room, written.ink, right=column.right))
                line.append(TextRun(" " * column.gap))
            else:
                line += written
        return fit(line, width)


def percentile_source(totals: FleetTotals) -> str:
    """Return what the percentiles of the totals are computed from."""
    latency = latency_of(totals.state, "ttft_s")
    if latency is None or not latency.quantiles.n:
        return ""
    return "merged buckets" if latency.brackets is not None else "pooled requests"
