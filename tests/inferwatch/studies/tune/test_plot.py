"""The plot in characters, line by line."""

from typing import Any

from inferwatch.printing.axis import PlotAxis
from inferwatch.printing.canvas import PlotStyle
from inferwatch.studies.tune.result.plot import (
    PlotLatency,
    latencies_of,
    tune_plot,
)
from inferwatch.studies.tune.result.tune_result import TuneResult
from tests.inferwatch.studies.tune.made_up import a_result, measured, without

EXPECTED = """\
output tokens/s against TTFT p99; better: up and left
        │
   1,500┤      ────AB───
        │          ││
        │     │    ·
        │  ───C────·
        │     │
   1,000┤
        │                            │
        │                        ────d───
        │
     500┤
        │                                         ───e────
        │
        └────────────┬─────────┬─────────┬───────────┬──────
                  500 ms      1 s       2 s         5 s"""


def drawn(
    result: TuneResult, width: int = 60, height: int = 16, **more: Any
) -> list[str]:
    rows = tune_plot(result, width, height, **more)
    return ["".join(text for text, _ in row) for row in rows]


def test_points_have_letters_and_intervals_and_the_frontier_is_joined() -> None:
    assert drawn(a_result()) == EXPECTED.split("\n")


def test_no_row_is_wider_than_asked_for() -> None:
    for width in (40, 60, 80, 120):
        rows = drawn(a_result(), width, 20)
        assert max(map(len, rows)) <= width
        assert len(rows) - rows[-1].startswith("behind another: ") == 20


def test_an_interval_beyond_the_axis_ends_in_an_arrow() -> None:
    wide = measured(64, 1000, 0.6, ttft_p99_s_span=(0.01, 90.0))
    near = measured(32, 1100, 0.5)

    rows = drawn(a_result(wide, near))

    assert any(row.rstrip().endswith("▸") and "◂" in row for row in rows)


def test_a_point_that_another_hides_is_told() -> None:
    one, two = measured(32, 1000, 0.5), measured(33, 1000, 0.5)

    rows = drawn(a_result(one, two, measured(4, 10, 5.0)))

    assert rows[-1] == "behind another: b (a)"


def test_what_a_cell_is_does_not_rest_on_colour() -> None:
    pieces = [piece for row in tune_plot(a_result()) for piece in row]
    styles = {style for text, style in pieces if text.strip()}

    assert {text for text, style in pieces if style is PlotStyle.BEST} == {"A"}
    assert {text for text, style in pieces if style is PlotStyle.PRESENT} == {"d"}
    assert styles >= {PlotStyle.FRONTIER, PlotStyle.POINT, PlotStyle.STAIRS}


def test_one_setting_alone_is_no_plot() -> None:
    alone = measured(32, 1500, 0.4)

    assert drawn(a_result(alone)) == []
    assert drawn(a_result(alone, without(measured(8, 800, 1.5), "ttft_p99_s"))) == []


def test_tpot_is_drawn_where_somebody_asked_for_it() -> None:
    assert latencies_of("ttft_s<0.5 tpot_s<50ms") == (
        PlotLatency.TTFT,
        PlotLatency.TPOT,
    )
    assert latencies_of("ttft_s<0.5") == latencies_of(None) == (PlotLatency.TTFT,)

    result = a_result(
        measured(32, 1500, 0.4, tpot_p99_s=0.03, on_tpot_frontier=True),
        measured(8, 800, 1.5, tpot_p99_s=0.01, on_tpot_frontier=True),
    )
    rows = drawn(result, latency=PlotLatency.TPOT)

    assert rows[0] == "output tokens/s against TPOT p99; better: up and left"
    assert "20 ms" in rows[-1]


def test_an_axis_has_few_round_marks() -> None:
    axis = PlotAxis.of([(0.3, None), (9.0, None)], may_be_log=True)
    assert axis.is_log
    assert [text for _, text in axis.durations(4)] == ["300 ms", "1 s", "3 s", "10 s"]

    narrow = PlotAxis.of([(1000.0, None), (1010.0, None)])
    assert not narrow.is_log
    assert [text for _, text in narrow.counts(4)] == ["950", "1,000", "1,050"]
    assert narrow.share(1010.0) - narrow.share(1000.0) < 0.15
    assert narrow.share(1000.0) > 0

    same = PlotAxis.of([(0.0, None), (0.0, None)])
    assert same.low < same.high
