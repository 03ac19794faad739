"""Drawing asserted as text art: what the screens are made of."""

import doctest
from statistics import fmean
from types import ModuleType

import pytest

from inferwatch.ui.compare import detail as interval
from inferwatch.ui.kit.renderables import bars, plot, text
from inferwatch.ui.kit.renderables.plot import (
    MARGIN,
    BlockCell,
    Texture,
    TimeAxis,
    axis_top,
    last,
    nice_ceiling,
    stack,
    tick_text,
    ticks,
)
from inferwatch.ui.kit.renderables.text import (
    TextRun,
    fit,
    join_whole,
    ruled,
    spread,
    width_of,
)
from inferwatch.ui.steps.single_steps import scale_of

S = 1_000_000_000
TWO = [Texture.SOLID, Texture.DOTTED]


@pytest.mark.parametrize("module", [bars, plot, text, interval])
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)

    assert result.attempted > 0
    assert result.failed == 0


def cells_of(
    tops: list[float], textures: list[Texture], rows: int
) -> dict[int, BlockCell]:
    return {cell.row: cell for cell in stack(tops, textures, 0, rows)}


def art(tops: list[float], textures: list[Texture], rows: int) -> str:
    """One column, from its top to its bottom."""
    cells = cells_of(tops, textures, rows)
    drawn = {row: cell.glyph for row, cell in cells.items()}
    return "".join(drawn.get(row, ".") for row in reversed(range(rows)))


@pytest.mark.parametrize(
    ("tops", "drawn"),
    [
        pytest.param([0.0, 0.0], "....", id="nothing"),
        pytest.param([2.0, 2.0], "..██", id="whole cells"),
        pytest.param([1.5, 1.5], "..▄█", id="half a cell"),
        pytest.param([0.1, 0.1], "...▁", id="little"),
        pytest.param([0.01, 0.01], "...▁", id="however little"),
        pytest.param([1.0, 3.5], "⣤⣿⣿█", id="dots on top"),
        pytest.param([9.0, 9.0], "████", id="more than there is room for"),
    ],
)
def test_layers_lie_on_each_other(tops: list[float], drawn: str) -> None:
    assert art(tops, TWO, 4) == drawn


def test_a_cell_looks_like_one_layer_and_never_like_a_mixture() -> None:
    mean, worst = 1.5, 3.0

    drawn = cells_of([mean, worst], TWO, 4)

    assert [(cell.glyph, cell.layer) for cell in drawn.values()] == [
        ("█", 0),
        ("▄", 0),
        ("⣿", 1),
    ]


def test_a_thin_middle_layer_does_not_tear_a_hole_below_the_top_one() -> None:
    textures = [Texture.SOLID, Texture.DOTTED, Texture.LIGHT]

    assert art([1.0, 1.2, 3.0], textures, 3) == "░░█"


def test_an_empty_layer_is_counted_but_not_drawn() -> None:
    drawn = cells_of([1.5, 4.0], [Texture.SOLID, Texture.EMPTY], 4)

    assert [cell.glyph for cell in drawn.values()] == ["█", "▄"]


def test_an_empty_layer_does_not_cover_a_thin_one() -> None:
    assert art([1.0, 1.3, 3.0], [*TWO, Texture.EMPTY], 3) == ".⣀█"


def axis(bins: int = 120, columns: int = 40, start: int = 0) -> TimeAxis:
    return TimeAxis(start * S // 2, S // 2, bins, 60 * S, columns)


def test_a_bin_is_in_exactly_one_column_when_columns_are_wider() -> None:
    covered = [i for low, high in axis().slices for i in range(low, high)]

    assert covered == list(range(120))


def test_a_column_narrower_than_a_bin_shows_the_bin_it_lies_in() -> None:
    wide = axis(bins=10, columns=40, start=0)
    line = TimeAxis(0, 6 * S, 10, 60 * S, 40)

    shown = line.fold(range(10))

    assert wide.columns == len(shown) == 40
    assert shown[:9] == (0, 0, 0, 0, 1, 1, 1, 1, 2)
    assert shown[-1] == 9


def test_bars_move_left_by_whole_columns_and_keep_their_values() -> None:
    values = [float(i * 37 % 101) for i in range(123)]
    before = axis(start=0).fold(values[:120])
    after = axis(start=3).fold(values[3:123])

    assert after[:-1] == before[1:]


def test_a_gap_stays_a_gap() -> None:
    line = axis(bins=4, columns=4)

    folded = TimeAxis(0, S, 4, 4 * S, 4).fold([1.0, None, 3.0, None])

    assert line.columns == 4
    assert folded == (1.0, None, 3.0, None)


@pytest.mark.parametrize(
    ("how", "value"),
    [
        pytest.param(fmean, 2.0, id="mean"),
        pytest.param(max, 3.0, id="worst"),
        pytest.param(last, 1.0, id="level"),
    ],
)
def test_the_bins_of_a_column_are_folded_as_the_series_says(
    how: object, value: float
) -> None:
    line = TimeAxis(0, S, 3, 3 * S, 1)

    assert callable(how)
    assert line.fold([2.0, 3.0, 1.0], how) == (value,)


def test_a_moment_is_in_the_column_that_tells_it() -> None:
    line = axis()

    assert [line.column_at(line.moment(column)) for column in range(40)] == [*range(40)]
    assert line.column_at(line.start_ns - 1) is None


@pytest.mark.parametrize(
    ("peak", "top"),
    [(0.23, 0.25), (0.26, 0.5), (4_500, 5_000), (5_001, 10_000), (484, 500), (12, 20)],
)
def test_an_axis_ends_at_the_next_round_number(peak: float, top: float) -> None:
    assert nice_ceiling(peak) == top


@pytest.mark.parametrize("took_ns", [0, 1])
def test_an_axis_of_steps_that_took_no_time_has_its_labels(took_ns: int) -> None:
    low_ns, high_ns = scale_of([took_ns])

    labels = [tick_text(each / S, "s") for each in (low_ns, high_ns)]

    assert labels == ["0.1 ns", "1 ns"]


def test_a_limit_is_the_top_where_values_come_near_it() -> None:
    assert [axis_top(peak, 5, limit=32) for peak in (3, 7, 9, 32, 33)] == [
        5,
        10,
        32,
        32,
        50,
    ]


def test_the_top_of_an_axis_does_not_depend_on_what_was_drawn_before() -> None:
    def tops(*peaks: float) -> list[float]:
        return [axis_top(peak) for peak in peaks]

    assert tops(9, 11, 9) == [10, 20, 10]


@pytest.mark.parametrize("top", [1, 2, 2.5, 5, 10, 20, 25, 50, 250])
@pytest.mark.parametrize(
    ("unit", "scale"), [("", 1), ("", 1e3), ("s", 1e-6), ("s", 1e-3), ("s", 1)]
)
def test_ticks_leave_the_axis_in_its_place(top: float, unit: str, scale: float) -> None:
    labels = [label for _, label in ticks(top * scale, 9, unit)]

    assert labels[0] == "0"
    assert max(map(len, labels)) <= MARGIN - 2


@pytest.mark.parametrize("width", [0, 1, 5, 11, 12, 40])
def test_lines_never_exceed_their_width(width: int) -> None:
    left, right = [TextRun("left side"), TextRun("más → 模型")], [TextRun("right")]

    assert width_of(fit(left, width)) <= width
    assert width_of(spread(left, right, width)) <= width
    assert width_of(ruled(left, right, width)) <= width


def test_a_cut_is_shown() -> None:
    assert "".join(run.text for run in fit([TextRun("percentiles")], 8)) == "percent…"


def test_facts_that_have_no_room_are_left_out_whole() -> None:
    parts = [(TextRun("TTFT 12 ms"),), (TextRun("ITL 3 ms"),), (TextRun("out 9"),)]

    lines = [join_whole(parts, width) for width in (9, 10, 19, 20, 27)]

    assert ["".join(run.text for run in line) for line in lines] == [
        "",
        "TTFT 12 ms",
        "TTFT 12 ms",
        "TTFT 12 ms  ITL 3 ms",
        "TTFT 12 ms  ITL 3 ms  out 9",
    ]


def test_the_right_side_stays_where_it_is_when_the_left_grows() -> None:
    short = spread([TextRun("a")], [TextRun("now")], 20)
    long = spread([TextRun("a" * 40)], [TextRun("now")], 20)

    assert short[-1] == long[-1] == TextRun("now")
    assert width_of(short) == width_of(long) == 20
