"""The page of a comparison tells what the text tells, and trusts no text."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.contract.readings import Vantage
from inferwatch.studies.compare.charts.distributions import distributions
from inferwatch.studies.compare.charts.over_time import over_time
from inferwatch.studies.compare.comparison import (
    Comparison,
    ComparisonRules,
    MetricResult,
    compare,
)
from inferwatch.studies.compare.conclusion import conclusion, sentence
from inferwatch.studies.compare.fail_if import parse_condition
from inferwatch.studies.compare.metrics import KEYS
from inferwatch.studies.compare.page import ForestAxis, forest
from inferwatch.studies.compare.page import comparison_page as page
from inferwatch.studies.compare.quality import Quality, QualityCheck
from inferwatch.studies.compare.reading.request_kinds import ChangedPart, Cut
from inferwatch.studies.compare.reading.session_numbers import ComparedSide, Throughput
from inferwatch.studies.compare.report import GLYPHS, change_text, values_text
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.statistics.resampling import BINS, counted
from inferwatch.studies.compare.verdicts import MetricVerdict
from tests.inferwatch.printing.export.parsed_page import (
    CHROMIUM,
    Page,
    shown_by_browser,
)
from tests.inferwatch.studies.compare.conftest import TinyEngine, write

Run = Callable[..., tuple[int, str, str]]
EVIL = '"><script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m'


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``before`` and ``after``: the same requests, an engine with fewer slots."""
    path = tmp_path_factory.mktemp("page") / "sessions.db"
    write(path, "before", TinyEngine(1, per_s=20).run(40))
    write(path, "after", TinyEngine(1, per_s=20, slots=8).run(40))
    return path


@pytest.fixture(scope="module")
def found(slower: Path) -> Comparison:
    """The two compared."""
    conditions = (
        parse_condition("ttft_mean_s > +5%"),
        parse_condition("ttft_p50_s > +5000%"),
    )
    rules = ComparisonRules(conditions=conditions)
    return run_comparison(
        ComparisonRequest(database=slower, sessions=("before", "after"), rules=rules)
    )


def told(comparison: Comparison) -> str:
    return "\n".join(page(comparison))


def with_pair(comparison: Comparison, **changed: object) -> Comparison:
    pair = replace(comparison.pairs[0], **changed)  # type: ignore[arg-type]
    return replace(comparison, pairs=(pair,))


def renamed(side: ComparedSide, name: str) -> ComparedSide:
    runs = tuple(replace(run, label=name) for run in side.runs)
    return replace(side, runs=runs, label=name)


def result(key: str, ratio: float, span: tuple[float, float]) -> MetricResult:
    return MetricResult(
        metric=KEYS[key], a=1.0, b=ratio, n_a=9, n_b=9, ratio=ratio, ratio_span=span
    )


def test_the_page_is_whole_and_asks_nobody_for_anything(found: Comparison) -> None:
    text = told(found)

    read = Page(text)
    assert read.open == []
    assert read.tags["script"] == read.tags["img"] == read.tags["link"] - 1 == 0
    assert ("http-equiv", "Content-Security-Policy") in read.attributes
    links = [v for n, v in read.attributes if n in {"src", "href", "srcset", "data"}]
    assert links == ["data:,"]
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_it_says_what_the_text_says(found: Comparison) -> None:
    pair = found.pairs[0]

    words = Page(told(found)).words

    assert f"{sentence(pair)}." in words
    for each in pair.results:
        assert {text.strip() for text in values_text(each)} <= set(words)
        change = change_text(each.ratio)
        sign = "" if each.ratio is None else f"{GLYPHS[each.verdict]} "
        assert f"{sign}{change}" in words
    assert any(word.startswith("paired: ") for word in words)
    assert f"{conclusion(pair)}." in words
    assert "max_num_seqs" in words


def test_its_numbers_are_those_of_json(
    slower: Path, run_command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    arguments = ("--db", slower, "before", "after", "--json", "--html", out)

    _, printed, said = run_command(*arguments)

    kept = re.search(r"<pre>(.*)</pre>", out.read_text("utf-8"), re.DOTALL)
    assert kept is not None
    assert json.loads(Page(kept[0]).text) == json.loads(printed)
    assert said.strip().endswith(str(out))


def test_rows_that_say_something_come_first_and_the_rest_is_folded(
    found: Comparison,
) -> None:
    results = list(found.pairs[0].results)
    results[0] = replace(results[0], verdict=MetricVerdict.OPEN)
    results[-1] = replace(results[-1], verdict=MetricVerdict.WORSE)

    text = told(with_pair(found, results=tuple(results)))

    shown, _, folded = text.partition("What changed")[2].partition("<details>")
    heads = r'scope="rowgroup"><span class="sign">(. [a-z ]+), (\d+) row'
    groups = re.findall(heads, shown)
    order = [f"{glyph} {verdict}" for verdict, glyph in GLYPHS.items()]
    assert [name for name, _ in groups] == [
        each for each in order if each in dict(groups)
    ]
    assert groups[0][0] == "▼ worse"
    still_open = sum(each.verdict is MetricVerdict.OPEN for each in results)
    assert still_open > 0
    assert sum(int(count) for _, count in groups) == len(results) - still_open
    assert f"? cannot tell, {still_open} row" in folded.partition("</summary>")[0]
    assert folded.partition("</details>")[0].count('scope="row"') == still_open


def test_conditions_are_told_with_a_sign_and_a_word(found: Comparison) -> None:
    text = told(found)

    assert "✗ failed" in text
    assert "✓ held" in text
    assert "--fail-if &#x27;ttft_mean_s &gt; +5%&#x27;: FAILED" in text


@pytest.mark.parametrize(
    ("quality", "sign"),
    [
        (Quality.GOOD, "✓ good"),
        (Quality.DOUBTFUL, "▲ doubtful"),
        (Quality.VOID, "✗ void"),
        (Quality.UNKNOWN, "? unknown"),
    ],
)
def test_quality_is_told_by_more_than_a_colour(
    found: Comparison, quality: Quality, sign: str
) -> None:
    check = QualityCheck(subject="model", quality=quality, sentence="One <b>model</b>.")

    text = told(with_pair(found, quality=(check,)))

    assert sign in text
    assert "One &lt;b&gt;model&lt;/b&gt;." in text
    assert ('class="lead void"' in text) == (quality is Quality.VOID)


def test_where_the_change_is_largest_stands_under_its_row(found: Comparison) -> None:
    place = ChangedPart(
        metric=KEYS["ttft_p99_s"],
        cut=Cut.PROMPT,
        part="over 1k",
        a=1.0,
        b=3.0,
        n_a=10,
        n_b=10,
        ratio=3.0,
        sentence=f"mostly in prompts over 1k {EVIL}",
    )

    text = told(with_pair(found, places=(place,)))

    row = r"<tr><th scope=\"row\">TTFT p99 <[^>]*>frontend .*?</tr>\n(<tr.*?</tr>)"
    below = re.findall(row, text)
    assert len(below) == 1
    assert "mostly in prompts over 1k" in below[0]
    assert "<script" not in text


def test_whatever_sessions_are_called_nothing_becomes_markup(
    found: Comparison,
) -> None:
    sides = tuple(renamed(side, EVIL) for side in found.sides)
    doubt = QualityCheck(subject=EVIL, quality=Quality.DOUBTFUL, sentence=EVIL)
    pair = replace(found.pairs[0], a=sides[0], b=sides[1], quality=(doubt,))
    evil = replace(found, sides=sides, pairs=(pair,))

    text = told(evil)

    read = Page(text)
    assert read.open == []
    assert read.tags["script"] == read.tags["img"] == 0
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert "\x1b" not in text
    assert read.text.count('alert("x")') > 10


def test_each_distribution_has_a_line_a_side_that_differ_by_more_than_colour(
    found: Comparison,
) -> None:
    charts = distributions(found.pairs[0])

    names = [re.findall(r'<b>(.*?)</b> <span class="unit">(.*?)<', c) for c in charts]
    assert [each[0] for each in names] == [
        ("TTFT", "client"),
        ("TTFT", "frontend"),
        ("TPOT", "client"),
        ("TPOT", "engine"),
        ("ITL", "client"),
        ("ITL", "engine"),
        ("E2EL", "client"),
        ("E2EL", "frontend"),
        ("queue", "engine"),
    ]
    for each in charts:
        assert each.count('<polyline class="line a"') == 1
        assert each.count('<polyline class="line b"') == 1
    assert ".line.b { stroke: var(--side-b); stroke-dasharray" in told(found)


def points_of(chart: str, name: str) -> list[tuple[float, float]]:
    drawn = re.search(rf'<polyline class="{name}" points="(.*?)"', chart)
    assert drawn is not None
    pairs = (each.split(",") for each in drawn[1].split())
    return [(float(x), float(y)) for x, y in pairs]


def test_the_percentiles_of_the_table_lie_on_the_lines(found: Comparison) -> None:
    chart = distributions(found.pairs[0])[0]
    for side in ("a", "b"):
        line = points_of(chart, f"line {side}")
        assert [x for x, _ in line] == sorted(x for x, _ in line)
        dots = re.findall(
            rf'<path class="dot {side}" d="M([\d.]+) ([\d.]+)h0"><', chart
        )
        assert len(dots) == 3
        for x, y in dots:
            near = min(line, key=lambda point: abs(point[1] - float(y)))
            assert near[0] == pytest.approx(float(x), abs=8)


def told_at(chart: str) -> dict[str, tuple[str, str]]:
    """What hovering tells, by the time since the load began."""
    titles = re.findall(r"<title>(\d\d:\d\d): before (.*?), after (.*?)<", chart)
    return {at: (before, after) for at, before, after in titles}


def test_when_it_was_slow_is_seen_over_time(found: Comparison) -> None:
    place = np.arange(BINS).repeat(10)
    late = place >= BINS * 3 // 4
    values_ns = {"a": np.full(len(place), 10**7), "b": np.where(late, 10**8, 10**7)}
    sides = [
        replace(
            side,
            runs=(replace(side.first, counted={"ttft_s": counted(place, values)}),),
        )
        for side, values in zip(found.sides, values_ns.values(), strict=True)
    ]
    pair = replace(found.pairs[0], a=sides[0], b=sides[1], results=())

    _, chart = over_time(pair)

    told = told_at(chart)
    span = pair.b.first.span
    slow_from_s = span.from_s + span.length_s * 3 / 4
    assert 30 < len(told) <= 60
    for at, (before, after) in told.items():
        at_s = int(at[:2]) * 60 + int(at[3:])
        assert before.endswith("10.0 ms")
        if abs(at_s - slow_from_s) > 2:
            assert after == ("100 ms" if at_s > slow_from_s else "10.0 ms")
    assert "not compared, up to" in chart or span.from_s == 0


def test_no_token_is_lost_between_columns(found: Comparison) -> None:
    run = found.sides[0].first
    throughput = Throughput(bin_s=run.span.to_s / BINS, per_s=(12.0,) * BINS)
    sides = [
        replace(each, runs=(replace(each.first, throughput=throughput, counted={}),))
        for each in found.sides
    ]
    pair = replace(found.pairs[0], a=sides[0], b=sides[1], results=())

    (chart,) = over_time(pair)

    assert set(told_at(chart).values()) == {("12.0", "12.0")}


def test_several_runs_are_thin_lines_under_that_of_their_side(
    found: Comparison,
) -> None:
    before, after = (side.first for side in found.sides)
    pair = replace(
        found.pairs[0], b=ComparedSide(runs=(after, before), label="both"), results=()
    )

    chart = distributions(pair)[0]

    assert chart.count('"line b thin"') == 2
    assert chart.count('"line a thin"') == 0
    middle = points_of(chart, "line b")[120][0]
    thin = re.findall(r'<polyline class="line b thin" points="(.*?)"', chart)
    xs = sorted(float(each.split()[120].split(",")[0]) for each in thin)
    assert xs[0] <= middle <= xs[1]
    assert middle == pytest.approx(sum(xs) / 2, abs=1)  # geometric: the axis is log


def test_a_forest_draws_the_interval_around_the_change() -> None:
    shown = result("ttft_p50_s", 1.2, (1.1, 1.3))
    axis = ForestAxis.of([shown], 0.1)

    drawn = forest(axis, shown)

    (bar,) = re.findall(r'class="bar" d="M([\d.]+) 15H([\d.]+)"', drawn)
    (dot,) = re.findall(r'class="dot" d="M([\d.]+) 15h0"', drawn)
    none = axis.share(1.0) * 1000
    assert none < float(bar[0]) < float(dot) < float(bar[1]) < 1000
    assert [tick.text for tick in axis.ticks()].count("0") == 1


def test_what_lies_beyond_the_axis_is_an_arrow_without_a_dot() -> None:
    huge = result("ttft_p50_s", 155.0, (120.0, 361.0))
    gone = result("ttft_p90_s", 0.0, (0.0, 0.0))
    axis = ForestAxis.of([huge, gone], 0.1)

    assert 'class="dot"' not in forest(axis, huge)
    assert "M988.0 10L1000.0 15" in forest(axis, huge)
    assert "M12.0 10L0.0 15" in forest(axis, gone)


def test_what_is_not_known_is_not_drawn() -> None:
    unknown = MetricResult(
        metric=KEYS["ttft_p50_s"], a=None, b=1.0, n_a=0, n_b=9, why="a has no values"
    )

    assert forest(ForestAxis.of([unknown], 0.1), unknown) == ""


def test_sessions_with_nothing_in_common_are_a_page_all_the_same(
    found: Comparison,
) -> None:
    empty = tuple(
        ComparedSide.of(replace(each.first, counted={}, sums={}, throughput=None))
        for each in found.sides
    )

    text = told(compare(empty, ComparisonRules()))

    read = Page(text)
    assert read.open == []
    assert read.tags["polyline"] == 0
    assert "cannot tell" not in read.text or read.tags["svg"] == 0


def test_a_single_metric_of_one_vantage_is_one_distribution(found: Comparison) -> None:
    only = "client.ttft_s"
    sides = [
        ComparedSide.of(
            replace(each.first, counted={only: each.first.counted[only]}, sums={})
        )
        for each in found.sides
    ]

    alone = compare(sides, ComparisonRules())

    assert len(distributions(alone.pairs[0])) == 1
    assert {each.metric.vantage for each in alone.pairs[0].results} == {Vantage.CLIENT}
    assert Page(told(alone)).open == []


@pytest.mark.parametrize(
    "values_ns",
    [[0] * 30, [7], [-5, 0, 3], [10**6] * 500, [1, 10**13], [0, 10**9] * 50],
    ids=["zeros", "one", "negative", "equal", "far apart", "half zeros"],
)
def test_strange_values_are_a_page_all_the_same(
    found: Comparison, values_ns: list[int]
) -> None:
    place = np.arange(len(values_ns)) * BINS // len(values_ns)
    values = counted(place, np.array(values_ns))
    sides = [
        ComparedSide.of(
            replace(each.first, counted={"ttft_s": values, "queue_s": values}, sums={})
        )
        for each in found.sides
    ]

    text = told(compare(sides, ComparisonRules()))

    assert Page(text).open == []
    drawn = re.findall(r'points="(.*?)"', text)
    assert "nan" not in text.partition("<h2>All numbers")[0]
    for each in drawn:
        for point in each.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 1000
            assert 0 <= y <= 160


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_a_real_browser_shows_it_without_a_complaint(
    found: Comparison, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    out.write_text(told(found), "utf-8")

    dom = shown_by_browser(out, tmp_path)

    assert dom.tags["script"] == 0
    assert dom.tags["figure"] > 10
    assert dom.tags["polyline"] > 20


def test_a_third_session_has_a_section_of_its_own(
    sessions: Path, run_command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"

    run_command("--db", sessions, "before", "after", "slow", "--html", out)

    read = Page(out.read_text("utf-8"))
    assert read.open == []
    assert read.tags["section"] == 2
    assert "after against before" in read.words
    assert "slow against before" in read.words
    assert read.words.count("Settings that differ") == 1


def test_on_stdout_the_page_is_alone(slower: Path, run_command: Run) -> None:
    status, printed, _ = run_command("--db", slower, "before", "after", "--html", "-")

    assert status == 0
    assert printed.startswith("<!doctype html>")
    assert printed.rstrip().endswith("</html>")


@pytest.mark.parametrize("other", ["--json", "--text"])
def test_stdout_is_not_shared(slower: Path, run_command: Run, other: str) -> None:
    status, printed, said = run_command(
        "--db", slower, "before", "after", "--html", "-", other
    )

    assert status == 2
    assert printed == ""
    assert "leave out" in said


def test_an_existing_file_is_kept_unless_forced(
    slower: Path, run_command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    arguments: Sequence[object] = ("--db", slower, "before", "after", "--html", out)

    status, _, said = run_command(*arguments)

    assert (status, out.read_text()) == (2, "mine")
    assert "--force" in said
    assert run_command(*arguments, "--force")[0] == 0
    assert out.read_text().startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_an_existing_file_is_refused_before_anything_is_read(
    slower: Path, run_command: Run, tmp_path: Path
) -> None:
    (tmp_path / "page.html").touch()

    _, _, said = run_command(
        *("--db", slower, "nobody", "nothing", "--html", tmp_path / "page.html")
    )

    assert "already exists" in said


def test_a_database_is_never_overwritten(slower: Path, run_command: Run) -> None:
    kept = slower.read_bytes()

    status, _, said = run_command(
        *("--db", slower, "before", "after", "--html", slower, "--force")
    )

    assert status == 2
    assert "is a database" in said
    assert slower.read_bytes() == kept


def test_the_status_is_that_of_the_conditions(
    slower: Path, run_command: Run, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    condition = ("--fail-if", "ttft_mean_s > +5%")

    status, _, _ = run_command(
        "--db", slower, "before", "after", "--html", out, *condition
    )

    assert status == 1
    assert out.exists()
