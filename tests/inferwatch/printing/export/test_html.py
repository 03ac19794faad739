"""The page tells the session's own numbers, asks nobody, and trusts no text."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from collectors.contract.readings import (
    ClientSample,
    EngineInfo,
    HostInfo,
    LoadPlanned,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    Step,
    TokenTimes,
)
from inferwatch.cli.main import inferwatch
from inferwatch.formatting import format_count, format_duration, format_durations
from inferwatch.printing.destination import Destination
from inferwatch.printing.export.html.charts import duration_axis
from inferwatch.printing.export.html.page import conclusion, write_html
from inferwatch.printing.export.html.page_data import Distribution
from inferwatch.printing.export.recording import opened
from inferwatch.printing.summary.latencies import COLUMNS
from inferwatch.printing.svg import (
    ChartCurve,
    ChartSeries,
    SvgTimeChart,
    cdf,
    cdf_axis,
)
from tests.inferwatch.metrics.scripted_hardware import gpu_info, plausible
from tests.inferwatch.metrics.scripted_live_limits import story
from tests.inferwatch.printing.export.conftest import Exported, Recorded
from tests.inferwatch.printing.export.parsed_page import (
    CHROMIUM,
    Page,
    shown_by_browser,
)

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture
def page_of(
    keep_session: Callable[..., Recorded], tmp_path: Path
) -> Callable[..., tuple[Path, str]]:
    """``page_of(readings, name=...)``: the page's file and text."""

    def make(readings: list[Any], **options: Any) -> tuple[Path, str]:
        path, _ = keep_session(readings, **options)
        out = tmp_path / "page.html"
        with opened(path, "last") as recording:
            write_html(recording, Destination(path=out))
        return out, out.read_text("utf-8")

    return make


def test_changed_limits_are_among_the_notes(
    page_of: Callable[..., tuple[Path, str]], traffic: Any
) -> None:
    _, page = page_of([*traffic.start(), *traffic.run(2), *story()])

    assert "0:02 limits</td><td>max_num_seqs 12 → 4, by ada (pid 4)</td>" in page
    assert "start-up limits are back: the watcher is gone" in page


def test_speculation_has_its_facts_and_its_chart_where_there_were_drafts(
    page_of: Callable[..., tuple[Path, str]], traffic: Any
) -> None:
    plain = [*traffic.start(), *traffic.run(2)]
    drafted = [
        replace(
            each,
            drafts=2,
            drafted_tokens=8,
            accepted_tokens=3,
            accepted_by_position=[2, 1, 0, 0],
        )
        if isinstance(each, Step)
        else each
        for each in plain
    ]

    _, page = page_of(drafted)
    words = [word.strip() for word in Page(page).words if word.strip()]
    facts = dict(pairwise(words[words.index("Speculative decoding, engine") :]))
    steps = sum(isinstance(each, Step) for each in drafted)
    assert facts["wasted"] == format_count(5 * steps).strip()
    assert facts["acceptance length"] == "2.50"
    assert facts["by position"] == "100% 50%"
    assert "share of drafts, engine" in page


def test_without_drafts_the_page_has_no_trace_of_speculation(
    exported: Exported,
) -> None:
    assert "Speculative" not in Page(exported(write_html).decode()).text


@pytest.fixture
def evil(traffic: Any) -> list[Any]:
    """A session whose every text wants to be a script."""
    engine = EngineInfo(
        source=EVIL, t_ns=0, pid=1, model=EVIL, vllm_version=EVIL, executor=EVIL
    )
    note = Note(t_ns=1, kind=NoteKind.STAGE, text=EVIL)
    plan = LoadPlanned(t_ns=1, plan=EVIL)
    return [*traffic.start(), engine, note, plan, *traffic.run(6)]


def test_the_page_is_whole_and_asks_nobody_for_anything(exported: Exported) -> None:
    page = Page(exported(write_html).decode())

    assert page.open == []
    assert page.tags["script"] == 0
    assert page.tags["svg"] == 8
    assert ("http-equiv", "Content-Security-Policy") in page.attributes
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    links = [v for n, v in page.attributes if n in {"src", "href", "srcset", "data"}]
    assert links == ["data:,"]
    assert "url(" not in page.text
    assert "prefers-color-scheme: dark" in page.text


def test_numbers_are_those_of_the_headless_summary(
    exported: Exported, recorded: Recorded
) -> None:
    words = ["replay", "before", "--headless", "--json", "--db", str(recorded[0])]
    wanted = json.loads(CliRunner().invoke(inferwatch, words).stdout)

    text = exported(write_html).decode()

    told = re.search(r"<pre>(.*)</pre>", text, re.DOTALL)
    assert told is not None
    assert json.loads(Page(told[0]).text) == wanted
    words = Page(text).words
    assert format_count(wanted["steps"]["count"]).strip() in words
    for metric in ("ttft_s", "itl_s", "e2el_s"):
        row = format_durations(wanted[metric][column] for column in COLUMNS)
        assert {text.strip() for text in row} <= {word.strip("~") for word in words}


def test_gpus_have_charts_a_row_each_and_the_energy_of_a_token(
    traffic: Any, page_of: Callable[..., tuple[Path, str]]
) -> None:
    _, page = page_of([*traffic.start(), *traffic.run(20), *plausible(20)])

    text = Page(page).text
    for words in ("Memory bandwidth", "GB/s, gpu", "Power", "of the boards", "Host"):
        assert words in text
    assert text.count("GPU 0 NVIDIA H100 80GB HBM3 (simulated)") == 1
    assert "GPU 1 NVIDIA H100 80GB HBM3 (simulated)" in text
    assert "no GPU stands behind these readings" in text
    assert "J per output token" in text
    assert "power cap" in text
    assert "8480+" in text


def test_without_gpus_the_page_has_no_trace_of_any(exported: Exported) -> None:
    text = Page(exported(write_html).decode()).text

    for words in ("Memory bandwidth", "Power", "J per output token", "SM active"):
        assert words not in text


def test_what_a_gpu_is_called_is_escaped(
    page_of: Callable[..., tuple[Path, str]],
) -> None:
    info = gpu_info(name=EVIL, driver=EVIL, profile=EVIL, lost_because=EVIL)
    host = HostInfo(t_ns=1, name=EVIL, cpu=EVIL)

    _, page = page_of([info, host, *plausible(6, gpus=1)[2:]])

    assert "<script" not in page


def test_every_text_is_escaped(
    page_of: Callable[..., tuple[Path, str]], evil: list[Any]
) -> None:
    _, text = page_of(evil, name=EVIL)

    page = Page(text)
    assert page.open == []
    assert page.tags["script"] == page.tags["img"] == 0
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count('alert("x")') >= 4


@pytest.mark.parametrize("record_first", [True, False], ids=["before", "after"])
def test_a_session_of_a_client_alone_gets_the_clients_charts(
    page_of: Callable[..., tuple[Path, str]], record_first: bool
) -> None:
    ms = 1_000_000
    readings: list[Any] = []
    for i in range(20):
        due_ns = i * 100 * ms
        times = TokenTimes(
            external_id=f"r{i}", first_ns=due_ns + 50 * ms, gaps_ns=[20 * ms] * 4
        )
        record = RequestRecord(
            index=i,
            external_id=f"r{i}",
            phase=Phase.STEADY,
            intended_ns=due_ns,
            sent_ns=due_ns,
            first_token_ns=due_ns + 50 * ms,
            last_token_ns=due_ns + 130 * ms,
            end_ns=due_ns + 131 * ms,
            output_tokens=5,
        )
        readings += [record, times] if record_first else [times, record]

    page = Page(page_of(readings)[1])

    assert page.tags["svg"] == 4
    assert page.words.count("ms, client") == 2
    assert "sent" in page.words
    assert "50.0 ms" in page.words
    assert page.words.count("ITL") == 2  # a chart and a curve
    assert page.words.count("TPOT") == 1  # a curve


def test_a_session_without_anything_is_a_page_all_the_same(
    page_of: Callable[..., tuple[Path, str]],
) -> None:
    page = Page(page_of([Note(t_ns=1, kind=NoteKind.LOST, text="never came")])[1])

    assert page.open == []
    assert page.tags["svg"] == 0
    assert "never came" in page.words


def test_of_a_loss_a_page_has_the_cause_and_neither_log_nor_keys(
    page_of: Callable[..., tuple[Path, str]],
) -> None:
    text = "exited with status 1: api_key=hunter2\nINFO prompt: 'a secret'\nTraceback"

    content = page_of([Note(t_ns=1, kind=NoteKind.LOST, text=text)])[1]

    assert "exited with status 1: api_key=…" in Page(content).words
    for left_out in ("hunter2", "a secret", "Traceback"):
        assert left_out not in content


def test_a_distribution_is_true_to_a_hundredth() -> None:
    distribution = Distribution()
    for value_ns in range(1_000_000, 11_000_000, 10_000):
        distribution.add(value_ns)

    points = distribution.points()

    assert points[0][1] == 0
    assert points[-1][1] == 1
    assert [share for _, share in points] == sorted(share for _, share in points)
    for value_s, share in points[1:-1]:
        true = (value_s * 1e9 - 1_000_000) / 10_000_000
        assert share == pytest.approx(true, abs=0.012)


def test_a_client_that_was_too_slow_says_so_below_its_latencies(
    traffic: Any, page_of: Callable[..., tuple[Path, str]]
) -> None:
    starved = ClientSample(
        source="load-1",
        t_ns=7_000_000_000,
        span_ns=7_000_000_000,
        final=True,
        transport="raw",
        cpu_s=6.9,
    )

    _, text = page_of([*traffic.start(), *traffic.run(6), starved])

    assert "; the load generator used 99% of a core. These numbers" in text
    assert "▲ CLIENT-BOUND: send lag p99 is 1 ms" in text


@pytest.mark.process
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_a_real_browser_shows_it_without_a_complaint(
    page_of: Callable[..., tuple[Path, str]], evil: list[Any], tmp_path: Path
) -> None:
    page, _ = page_of(evil, name=EVIL)

    dom = shown_by_browser(page, tmp_path)

    assert dom.tags["script"] == 0
    assert dom.tags["svg"] == 8
    assert dom.tags["polyline"] + dom.tags["polygon"] > 15
    assert "TTFT" in dom.text


def test_the_conclusion_comes_first_then_charts_then_tables(exported: Exported) -> None:
    content = exported(write_html).decode()

    body = content.split("<body")[1]
    places = [body.index(part) for part in ('class="lead"', "<svg", "<table")]
    assert places == sorted(places)
    last_chart = body.rindex("</figure>")
    assert last_chart < body.index("<h2>Latencies, server</h2>")
    tables = re.findall(r"(.{18})\n?<table(?! class=\"facts\")", body, re.DOTALL)
    assert tables
    assert all(before.strip().endswith('<div class="wide">') for before in tables)


def test_charts_of_durations_share_one_unit(exported: Exported) -> None:
    content = exported(write_html).decode()

    units = set()
    for title in ("TTFT", "ITL", "Step time"):
        figure = content.split(f"<figcaption><b>{title}</b>")[1].split("</figure>")[0]
        ticks = re.findall(r'<span class="tick[^>]*>(.*?)</span>', figure)
        units |= {each.split()[-1] for each in ticks[:2]}
        assert f'<span class="unit">{ticks[0].split()[-1]}, ' in figure
    assert len(units) == 1


def test_axes_in_seconds_keep_the_digits_of_their_tooltips() -> None:
    """The longest TTFT is 16 s, gaps take 8 ms: both axes are in seconds."""
    ttft = [ChartSeries(name="mean", ink="mean", values=[0.2, 16.0])]
    itl = [ChartSeries(name="mean", ink="mean", values=[0.0081, 0.2])]

    axis, unit = duration_axis(ttft, itl)
    figure = SvgTimeChart(
        title="ITL",
        unit=unit,
        series=itl,
        say=format_durations,
        start_s=0,
        column_s=1,
        axis=axis,
    ).html()

    assert unit == "s"
    assert [*axis([20.0, 0.25])] == ["20 s", "0.25 s"]
    assert ">0.25 s</span>" in figure
    assert "mean 8.10 ms</title>" in figure


def test_both_distributions_have_one_axis(exported: Exported) -> None:
    content = exported(write_html).decode()

    figures = content.split("cumulative distribution")[1:]
    axes = {
        tuple(re.findall(r"tick[^>]*>(.*?)</span>", each.split('class="xs">')[1])[:5])
        for each in figures
        if 'class="xs">' in each
    }
    assert len(axes) == 1


def test_chunks_that_came_at_once_do_not_stretch_the_axis_of_a_distribution() -> None:
    spread = [(1e-9, 0.2), (5e-3, 0.9), (10.0, 1.0)]

    curves = [ChartCurve(name="ITL", ink="mean", points=spread)]

    drawn = cdf("ITL", curves, format_duration, cdf_axis(curves))

    *_, xs = drawn.split('<div class="xs">')
    assert re.findall(r"<span [^>]*>(.*?)</span>", xs) == [
        "100 µs",
        "1.8 ms",
        "31.6 ms",
        "562 ms",
        "10.0 s",
    ]
    points = re.findall(r'points="(.*?)"', drawn)[0]
    assert points.startswith("0.0,160.0 0.0,128.0 ")
    assert not re.search(r"(?<![\d.])-", points)


def test_the_page_tells_why_the_slowest_requests_were_slow(
    exported: Exported, recorded: Recorded
) -> None:
    words = ["replay", "before", "--headless", "--json", "--db", str(recorded[0])]
    slowest = json.loads(CliRunner().invoke(inferwatch, words).stdout)["slow_requests"]

    told = Page(exported(write_html).decode()).words

    assert "Why requests were slow" in told
    lead = next(word for word in told if " of the slowest TTFTs was " in word)
    assert re.search(r"TTFT .* at p50 and .* at p99; \d+% of the slowest", lead)
    assert "Slowest requests" in told
    assert slowest[0]["external_id"] in told


def test_the_conclusion_is_of_the_engine_and_of_its_costliest_finding() -> None:
    def found(title: str, subject: str, cost: float) -> dict[str, Any]:
        return {"title": title, "sentence": "It is.", "subject": subject, "cost": cost}

    summary: dict[str, Any] = {
        "engine": {"model": "m"},
        "load_runs": [],
        "requests": {"failed": 0},
        "verdict": {"health": "queueing", "sentence": "35% of the last 60 s"},
        "findings": [
            found("late attach", "measuring", 0.9),
            found("host busy", "engine", 0.1),
            found("KV full", "engine", 0.5),
        ],
    }

    said = conclusion(summary, None)

    assert said == "QUEUEING 35% of the last 60 s. KV full: It is; 1 finding more"
    calm = {**summary, "verdict": {"health": "healthy", "sentence": "2 running"}}
    assert conclusion(calm, None) == "KV full: It is; 1 finding more"
    calm["findings"] = summary["findings"][:1]
    assert conclusion(calm, None) == "Nothing stood out"


def test_where_the_time_of_all_requests_went_is_a_table_that_adds_up(
    page_of: Callable[..., tuple[Path, str]], traffic: Any
) -> None:
    _, text = page_of([*traffic.start(), *traffic.run(8)])

    table = text.partition("<h2>Where the time went</h2>")[2].partition("</table>")[0]
    rows = [re.findall("<td>(.*?)</td>", row) for row in table.split("<tr>")]
    shares = {row[0]: float(row[2].strip("~%")) for row in rows if row}
    phases = [share for name, share in shares.items() if not name.startswith("↳")]
    assert sum(phases) == pytest.approx(100, abs=0.5 * len(phases))
    own, others = (shares[f"↳ prefill{of}"] for of in ("", ": others"))
    assert own + others == pytest.approx(shares["prefill"], abs=0.2)
    assert ">~" in table
