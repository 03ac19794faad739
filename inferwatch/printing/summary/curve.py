"""Curves of bounds over batch sizes: in one sentence, as tables, plots and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase
from typing import Any

from inferwatch.formatting import (
    UNKNOWN,
    counted,
    duration_text,
    format_durations,
    format_price,
    format_rate,
    gigabytes_text,
    price_places,
)
from inferwatch.limits.curve import CurvePoint, PlanCurve
from inferwatch.limits.plan import CapacityPlan
from inferwatch.limits.roofline import CHECK
from inferwatch.printing.axis import PlotAxis
from inferwatch.printing.canvas import GUTTER, PlotCanvas, PlotRow, PlotStyle
from inferwatch.printing.document import (
    Block,
    Plot,
    PrintedColumn,
    PrintedRow,
    RowGroup,
    Sentence,
    Table,
    headed_charts,
)
from inferwatch.printing.page import all_numbers, page
from inferwatch.printing.summary.plan import formats_json
from inferwatch.printing.summary.remedies import remedies_json, remedy_lines
from inferwatch.printing.summary.set_ups import (
    UNSHARDED,
    formats_text,
    keeps_several,
    machine_text,
)
from inferwatch.printing.svg import HEIGHT, WIDTH, AxisTick, Figure, dot, line, path
from inferwatch.printing.text import Paint, document_text

KNEE, COMPUTE, TOO_FAST, CLAIM = "■", "▲", "✖", "×"
MOST_NAMED = 3
PLOT_ROWS = 14
X_TICKS, Y_TICKS = 8, 5
INKS = ("decode", "prefill", "output", "waiting", "mean", "kv", "worst", "e2el")
ABOUT = (
    f"{KNEE} the knee: from there on a step reads more KV cache than weights, or "
    "compute binds; more requests add ever fewer tokens/s and make everybody slower. "
    f"{COMPUTE} compute binds. TPOT is a floor, tokens/s are a ceiling, at 100% of the "
    "peaks; communication between GPUs, the host and the queue are excluded."
)


def curve_sentence(curves: Sequence[PlanCurve]) -> str:
    """Where the knee is, or which measured points cannot be.

    For example ``7 of 7 measured points are faster than possible on A100 SXM 80GB, up
    to 1.36 times``.
    """
    judged = [each for each in curves if each.measured]
    said = [_judgement(each) for each in judged] or [_knee(each) for each in curves]
    more = len(said) - MOST_NAMED
    text = "; ".join([*said[:MOST_NAMED], *([f"{more} more below"] * (more > 0))])
    return f"{text[0].upper()}{text[1:]}"


def _judgement(curve: PlanCurve) -> str:
    points, bad = counted(len(curve.measured), "measured point"), curve.impossible
    where = _where(curve.plan)
    if keeps_several(curve.plan):
        where += f" {UNSHARDED}"
    if not bad:
        best = max((each.of_ceiling or 0.0 for each in curve.measured), default=0.0)
        verb = "is" if len(curve.measured) == 1 else "are"
        return f"{points} {verb} possible on {where}: at most {best:.2f} × the ceiling"
    worst = max(each.of_ceiling or 0.0 for each in bad)
    verb = "is" if len(bad) == 1 else "are"
    return (
        f"{len(bad)} of {points} {verb} faster than possible on {where}, up to "
        f"{worst:.2f} × the ceiling: {CHECK}"
    )


def _knee(curve: PlanCurve) -> str:
    where, knee = _where(curve.plan), curve.at_knee
    most = curve.plan.max_requests
    fit = f"{counted(most, 'request')} {'fits' if most == 1 else 'fit'}"
    if not curve.plan.fits:
        least = curve.plan.workload.batch
        verb = "fits" if least == 1 else "fit"
        short = gigabytes_text(-curve.plan.left_bytes)
        more = f"; {fit}" if most else ""
        return (
            f"not even {counted(least, 'request')} {verb} on {where}: {short} short on "
            f"each GPU{more}"
        )
    if knee is None:
        return f"no knee on {where}; {fit}"
    batch, floor_s = knee.workload.batch, knee.tpot_floor_s
    rate = _rate(batch / floor_s if floor_s else None)
    return (
        f"the knee is at {counted(batch, 'request')} on {where}, {rate} tokens/s and a "
        f"TPOT of {duration_text(floor_s)} at best; {fit}"
    )


def _where(plan: CapacityPlan) -> str:
    tokens = f"{plan.workload.context:,} tokens"
    return f"{machine_text(plan)} ({formats_text(plan.shape)}, {tokens})"


def curve_text(
    name: str,
    curves: Sequence[PlanCurve],
    width: int,
    paint: Paint,
    currency: str = "$",
) -> Iterator[str]:
    """The curves as a plot and a table of each, and what would make them fit."""
    load = curves[0].plan.workload
    each = f"{load.prompt:,} + {load.output:,}"
    tokens = (
        f", {each} tokens a request" if len({_load(c) for c in curves}) == 1 else ""
    )
    sections: list[Sequence[Block]] = [
        [Sentence(text=f"{name}{tokens}")],
        [Plot(rows=curve_plot(curves, width))],
        [_table(curves, currency)],
    ]
    yield document_text(sections, width, paint)
    yield ""
    yield from remedy_lines([each.plan for each in curves], width, currency)
    yield document_text([[Sentence(text=ABOUT, hangs=False)]], width, paint)


def curve_page(
    name: str,
    curves: Sequence[PlanCurve],
    conclusion: str,
    facts: object,
    currency: str = "$",
) -> Iterable[str]:
    """The curves as an HTML page."""
    blocks: list[Block] = [
        Sentence(text=f"{conclusion}.", is_lead=True),
        *headed_charts(
            "Curves", [_figure(curves, is_rate=each) for each in (True, False)], ABOUT
        ),
        _table(curves, currency),
        all_numbers("as JSON", facts),
    ]
    title = f"{name}: bounds by batch size"
    return page(title, blocks, kind="study", heading=title)


def _load(curve: PlanCurve) -> tuple[int, int]:
    return curve.plan.workload.prompt, curve.plan.workload.output


# The table: a group of rows for each curve.


def _table(curves: Sequence[PlanCurve], currency: str) -> Table:
    claimed = any(each.measured for each in curves)
    share = "a user" if _places(curves) is None else "a million"
    heads = ["batch", "TPOT floor", "tokens/s", share, "KV a GPU", "fits"]
    widths = [9, 12, 10, len(share) + 3, 11, 6]
    if claimed:
        heads += ["measured", "of it"]
        widths += [10, 9]
    columns = [
        PrintedColumn(head=head, width=width)
        for head, width in zip(heads, widths, strict=True)
    ]
    columns.append(PrintedColumn(is_left=True))
    groups = [
        RowGroup(
            head=f"{letter} {_where(each.plan)}",
            tone="heading",
            rows=_rows(each, _shares(each, currency, _places(curves)), claimed=claimed),
            notes=[_notes(each)],
        )
        for letter, each in zip(ascii_lowercase, curves, strict=False)
    ]
    return Table(columns=columns, groups=groups)


def _places(curves: Sequence[PlanCurve]) -> int | None:
    """Decimals of prices; None where GPUs have none."""
    if curves[0].plan.machine.gpu_hour is None:
        return None
    prices = (
        e.plan.cost(e.plan.tokens_per_s) for curve in curves for e in curve.points
    )
    return price_places(prices)


def _shares(curve: PlanCurve, currency: str, places: int | None) -> Sequence[str]:
    """Price of a million tokens of each point; without prices, a user's tokens/s."""
    if places is None:
        return [_rate(e.ceiling / e.batch if e.ceiling else None) for e in curve.points]
    prices = (each.plan.cost(each.plan.tokens_per_s) for each in curve.points)
    return [format_price(each, currency, places) for each in prices]


def _rows(
    curve: PlanCurve, shares: Sequence[str], *, claimed: bool
) -> list[PrintedRow]:
    floors = format_durations(each.plan.tpot_floor_s for each in curve.points)
    rows = []
    for point, floor, share in zip(curve.points, floors, shares, strict=True):
        cells = [
            f"{point.batch:,}",
            floor.strip(),
            _rate(point.ceiling),
            share,
            gigabytes_text(point.plan.kv_bytes),
            "yes" if point.plan.fits else "no",
        ]
        if claimed:
            cells += [_rate(point.measured_tokens_per_s), _of_ceiling(point)]
        tone = "impossible" if point.possible is False else ""
        marks = "".join(
            sign
            for sign, place in ((KNEE, curve.knee), (COMPUTE, _compute(curve)))
            if place is not None and point is _first_from(curve, place)
        )
        rows.append(PrintedRow(cells=[*cells, f" {marks}".rstrip()], tone=tone))
    return rows


def _first_from(curve: PlanCurve, batch: int) -> CurvePoint | None:
    return next((each for each in curve.points if each.batch >= batch), None)


def _compute(curve: PlanCurve) -> int | None:
    return curve.plan.compute_bound_from


def _rate(rate: float | None) -> str:
    return format_rate(rate).strip()


def _of_ceiling(point: CurvePoint) -> str:
    share = point.of_ceiling
    if share is None:
        return UNKNOWN
    return f"{TOO_FAST if point.possible is False else ''} {share:.2f} ×".strip()


def _notes(curve: PlanCurve) -> str:
    knee, compute = curve.knee, _compute(curve)
    most = curve.plan.max_requests
    parts = [
        f"{KNEE} knee: {counted(knee, 'request')}" if knee else "no knee",
        f"{COMPUTE} bound by compute from {counted(compute, 'request')}"
        if compute
        else "never bound by compute"
        if curve.plan.ridge
        else "bound by compute from: not known",
        f"at most {most:,} fit" if most else "not one fits",
    ]
    return "; ".join(parts)


# The plot: tokens/s over the batch.


def curve_plot(curves: Sequence[PlanCurve], width: int) -> list[PlotRow]:
    """The rows of the plot; empty if there is but one batch, or no peak is known."""
    axes = _axes(curves, is_rate=True)
    if axes is None:
        return []
    canvas = PlotCanvas(width - GUTTER - 2, PLOT_ROWS, *axes)
    used = dict.fromkeys(
        sign for each in curves for sign in _draw(canvas, each, _letter(curves, each))
    )
    words = {
        KNEE: "knee",
        COMPUTE: "bound by compute",
        CLAIM: "measured",
        TOO_FAST: "faster than possible",
    }
    legend = "  ".join(f"{sign} {word}" for sign, word in words.items() if sign in used)
    head = f"tokens/s by batch, letters where it fits   {legend}"
    return [
        ((head[:width].rstrip(), PlotStyle.LABEL),),
        *canvas.rows(canvas.x.counts(canvas.most_ticks)),
    ]


def _letter(curves: Sequence[PlanCurve], curve: PlanCurve) -> str:
    return next(
        letter
        for letter, each in zip(ascii_lowercase, curves, strict=False)
        if each is curve
    )


def _axes(
    curves: Sequence[PlanCurve], *, is_rate: bool
) -> tuple[PlotAxis, PlotAxis] | None:
    points = [point for each in curves for point in each.points]
    claims = [e.measured_tokens_per_s for e in points] if is_rate else []
    ys = [*(_y(each, is_rate=is_rate) for each in points), *claims]
    known = [each for each in ys if each is not None]
    batches = [float(each.batch) for each in points]
    if not known or len({*batches}) < 2:
        return None
    return (
        PlotAxis.of([(each, None) for each in batches], may_be_log=True),
        PlotAxis.of([(each, None) for each in [0.0, *known]]),
    )


def _y(point: CurvePoint, *, is_rate: bool) -> float | None:
    return point.ceiling if is_rate else point.plan.tpot_floor_s


def _draw(canvas: PlotCanvas, curve: PlanCurve, letter: str) -> Iterator[str]:
    """Draw a curve; yields the signs that it has."""
    for point in curve.measured:
        sign = TOO_FAST if point.possible is False else CLAIM
        place = canvas.column(point.batch), canvas.row(point.measured_tokens_per_s or 0)
        canvas.put(*place, sign, PlotStyle.PRESENT)
        yield sign
    yield from _draw_places(canvas, curve)
    for point in curve.points:
        if point.plan.fits and point.ceiling is not None:
            place = canvas.column(point.batch), canvas.row(point.ceiling)
            canvas.put(*place, letter, PlotStyle.FRONTIER)
    for column in range(canvas.width):
        rate = curve.ceiling_at(canvas.x.value(column / (canvas.width - 1)))
        if rate is not None:
            canvas.put(column, canvas.row(rate), "·", PlotStyle.STAIRS)


def _draw_places(canvas: PlotCanvas, curve: PlanCurve) -> Iterator[str]:
    """Mark the knee, and where compute begins to bind."""
    for sign, batch in ((KNEE, curve.knee), (COMPUTE, _compute(curve))):
        rate = curve.ceiling_at(batch) if batch is not None else None
        if batch is not None and rate is not None:
            canvas.put(canvas.column(batch), canvas.row(rate), sign, PlotStyle.BEST)
            yield sign


def _figure(curves: Sequence[PlanCurve], *, is_rate: bool) -> str:
    """Tokens/s or TPOT over the batch as a figure; empty without two batches."""
    axes = _axes(curves, is_rate=is_rate)
    if axes is None:
        return ""
    x, y = axes
    shapes = []
    for at, each in enumerate(curves):
        ink = INKS[at % len(INKS)]
        places = [
            (x.share(point.batch), 1 - y.share(value))
            for point in each.points
            if (value := _y(point, is_rate=is_rate)) is not None
        ]
        shapes.append(line(places, ink=ink))
        shapes += [
            dot("a", x.share(point.batch), 1 - y.share(value), _words(point), ink)
            for point in each.points
            if point.plan.fits and (value := _y(point, is_rate=is_rate)) is not None
        ]
        shapes += [
            dot(
                "b",
                x.share(point.batch),
                1 - y.share(point.measured_tokens_per_s or 0),
                _words(point),
                "worse" if point.possible is False else "better",
            )
            for point in each.measured
            if is_rate
        ]
        shapes += _rules(each, x)
    ticks = y.counts(Y_TICKS) if is_rate else y.durations(Y_TICKS)
    return Figure(
        kind="frontier",
        title="Tokens/s at best" if is_rate else "TPOT at best",
        unit="by batch; dots where it fits, dashed at the knee",
        shapes=shapes,
        x_ticks=[AxisTick(x.share(at), text) for at, text in x.counts(X_TICKS)],
        y_ticks=[AxisTick(1 - y.share(at), text) for at, text in ticks],
        keys=[
            (f"{letter} {_where(each.plan)}", INKS[at % len(INKS)])
            for at, (letter, each) in enumerate(
                zip(ascii_lowercase, curves, strict=False)
            )
        ],
    ).html()


def _rules(curve: PlanCurve, x: PlotAxis) -> Iterator[str]:
    knee = curve.knee
    if knee is not None and x.holds(knee):
        words = f"{KNEE} knee at {counted(knee, 'request')}, {_where(curve.plan)}"
        yield path("stairs", f"M{x.share(knee) * WIDTH:.1f} 0V{HEIGHT}", words)


def _words(point: CurvePoint) -> str:
    claim = point.measured_tokens_per_s
    measured = f"; measured {_rate(claim)}/s, {_of_ceiling(point)}" if claim else ""
    return (
        f"{counted(point.batch, 'request')}: {_rate(point.ceiling)} tokens/s, TPOT "
        f"{duration_text(point.plan.tpot_floor_s)}{measured}"
    )


def curve_json(
    name: str, curves: Sequence[PlanCurve], conclusion: str
) -> dict[str, Any]:
    return {
        "conclusion": conclusion,
        "model": name,
        "excluded": ["communication between GPUs", "host", "queue"],
        "curves": [_one_json(each) for each in curves],
    }


def _one_json(curve: PlanCurve) -> dict[str, Any]:
    plan = curve.plan
    knee, load = curve.at_knee, plan.workload
    return {
        **formats_json(plan),
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "context_tokens": load.context,
        "max_requests": plan.max_requests,
        "compute_bound_from_requests": plan.compute_bound_from,
        "knee_requests": curve.knee,
        "knee_tpot_floor_s": knee.tpot_floor_s if knee is not None else None,
        "remedies": remedies_json(plan),
        "measured_points": len(curve.measured),
        "impossible_points": len(curve.impossible),
        "points": [_point_json(each) for each in curve.points],
    }


def _point_json(point: CurvePoint) -> dict[str, Any]:
    ceiling = point.ceiling
    facts: dict[str, Any] = {
        "batch": point.batch,
        "tpot_floor_s": point.plan.tpot_floor_s,
        "ceiling_tokens_per_s": ceiling,
        "decode_tokens_per_s": point.plan.tokens_per_s,
        "decode_tokens_per_s_per_user": ceiling / point.batch if ceiling else None,
        "price_per_million": point.plan.cost(point.plan.tokens_per_s),
        "kv_bytes": point.plan.kv_bytes,
        "left_bytes": point.plan.left_bytes,
        "fits": point.plan.fits,
        "decode_bound_by": point.plan.binds,
    }
    if point.measured_tokens_per_s is not None:
        facts["measured_tokens_per_s"] = point.measured_tokens_per_s
        facts["of_ceiling"] = point.of_ceiling
        facts["possible"] = point.possible
    return facts
