"""One request as text: each part says what the story says, at every size."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.story.story import SpanKind, Spike
from inferwatch.ui.kit.renderables.text import Line, width_of
from inferwatch.ui.request.axis import Axis, Zoom, axis_of, tick_line
from inferwatch.ui.request.diagnosis import diagnosis
from inferwatch.ui.request.display import (
    DisplayOptions,
    ScreenPart,
    part_within,
    parts_within,
)
from inferwatch.ui.request.layout import ttft_bar, ttft_legend, waterfall
from inferwatch.ui.request.moments import StoryMoments
from inferwatch.ui.request.screen import draw_request
from inferwatch.ui.request.styles import CAUSES, LANES, LATE
from tests.inferwatch.ui import stories
from tests.inferwatch.ui.stories import ARRIVED_NS, MS, STORIES, S

SIZES = ((80, 17), (80, 20), (120, 33), (120, 36), (200, 56), (40, 12))
EXTREMES = ((80, 17), (200, 56), (40, 12))
AT_EXTREMES = ("long", "spiky")
"""The others are seen at the first size, and at the rest in a soak."""


def text(line: Line) -> str:
    return "".join(run.text for run in line)


def drawn(name: str, size: tuple[int, int] = (120, 36), **how: object) -> list[str]:
    looking = DisplayOptions(budget=2_048, arrived="03:11:46.000", back="requests")
    looking = replace(looking, **how)  # type: ignore[arg-type]
    return list(
        map(text, draw_request(StoryMoments(STORIES[name]()), looking, *size).lines)
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quick", "nothing stands out: TTFT 27.0 ms, ~52% prefill of its own prompt"),
        ("queued", "TTFT 1.85 s: 64% queueing for KV blocks, 11% queueing for max"),
        ("preempted", "1 late token, after 681 ms: preemption and recompute"),
        ("spiky", "7 late tokens, the worst after 212 ms: 2× long prefill, 1× host"),
        ("live", "no token yet after 3.16 s, most of it queueing for max_num_seqs"),
        ("unknown", "TTFT 800 ms: 90% not explained; none of 11 gaps is late"),
        ("long", "1 late token, after 908 ms: a stall of the engine's host"),
    ],
)
def test_the_diagnosis_names_the_largest_part_and_late_tokens(
    name: str, said: str
) -> None:
    assert said in diagnosis(STORIES[name]())


def test_a_request_that_was_hindered_a_lot_stands_out_though_prefill_took_more() -> (
    None
):
    told = replace(
        stories.quick(), ttft_parts=((Cause.PREFILL, 0.5), (Cause.QUEUE_KV, 0.4))
    )

    assert diagnosis(told).startswith("TTFT 27.0 ms: ~56% prefill")


def test_what_ended_without_a_token_says_so() -> None:
    told = stories.live()
    ended = replace(told, row=replace(told.row, state=RequestState.ABORTED))

    assert diagnosis(ended).startswith("ended without a token after 3.16 s")


def test_the_bar_shows_parts_in_order_and_as_long_as_they_took() -> None:
    bar = text(ttft_bar(stories.queued().ttft_parts, 60))

    assert bar == "─" + "░" * 7 + "▒" * 39 + "▓" * 4 + "█" * 5 + "▚▚" + "⣀⣀"
    assert len(bar) == 60


def test_the_legend_says_seconds_and_shares_and_marks_estimates() -> None:
    rows = list(map(text, ttft_legend(stories.queued().ttft_parts, 118)))

    assert rows[0].split("   ")[0].strip() == "· API"
    assert "▒ queue: KV blocks               1,190 ms   64%" in rows[3]
    assert "▓ queue: max_num_batched_tokens" in rows[4]  # never cut
    assert "█ prefill                         ~160 ms ~8.7%" in rows[0]


def test_a_legend_without_room_puts_the_smallest_together() -> None:
    parts = stories.queued().ttft_parts
    rows = " ".join(map(text, ttft_legend(parts, 78, most_rows=2)))

    assert "queue: KV blocks               1,190 ms   64%" in rows
    assert "8 smaller ones" in rows
    shown = sum(seconds for _, seconds in parts) - 1.190
    assert f"{shown * 1e3:.0f} ms" in rows


def lanes(name: str, columns: int = 40, zoom: Zoom = Zoom.LIFE) -> dict[str, str]:
    moments = StoryMoments(STORIES[name]())
    axis = axis_of(moments, zoom, None, columns, columns)
    rows = map(text, waterfall(moments, axis, None))
    return {row[:11].strip(): row[12 : 12 + columns] for row in rows}


def test_lanes_follow_one_another_on_one_axis() -> None:
    told = lanes("queued", zoom=Zoom.FIRST)

    assert list(told) == [
        "network",
        "tokenise",
        "hand over",
        "queue",
        "prefill",
        "left out",
        "decode",
        "send",
    ]
    assert told["queue"] == "─░░░░" + "▒" * 26 + "▓▓▓      "
    assert told["prefill"].lstrip() == "█████▏█"
    assert told["decode"].strip() in {"", "▏"}


def test_thinking_has_a_lane_with_its_own_late_tokens() -> None:
    story = stories.quick()
    ends = story.token_ns
    (span,) = (each for each in story.spans if each.kind is SpanKind.DECODE)
    middle_ns = (span.start_ns + span.end_ns) // 2
    thinking = replace(span, kind=SpanKind.THINKING, end_ns=middle_ns)
    first, last = (
        Spike(t_ns=at, gap_ns=MS, cause=Cause.SLOW_STEP, evidence="", step=1)
        for at in (ends[1], ends[-1])
    )
    spans = (thinking, replace(span, start_ns=middle_ns))
    moments = StoryMoments(replace(story, spans=spans, spikes=(first, last)))

    axis = axis_of(moments, Zoom.LIFE, None, 40, 40)
    rows = [text(each)[12:52] for each in waterfall(moments, axis, None)]

    assert [row.count("S") for row in rows] == [1, 1]
    assert rows[0].strip().strip("S╍▏") == rows[1].strip().strip("S━▏") == ""


def test_a_phase_too_short_for_a_column_is_seen_all_the_same() -> None:
    told = lanes("long")

    assert told["tokenise"].strip() == told["queue"].strip() == "▏"


def test_preemption_and_recompute_stand_between_two_stretches_of_decode() -> None:
    told = lanes("preempted")
    lost, again = told["preempted"], told["recompute"]

    assert set(lost.strip()) == {"▏", "▞"}
    assert lost.rindex("▞") <= again.index("▓")
    first, second = told["decode"].split("━ ", 1)
    assert len(first) < lost.index("▞")
    assert second.strip().startswith("R")


def test_every_moment_of_its_time_is_in_a_lane() -> None:
    told = lanes("queued", columns=120)
    columns = zip(*told.values(), strict=True)

    assert all(any(cell != " " for cell in column) for column in columns)


def test_glyphs_tell_lanes_causes_and_late_tokens_apart() -> None:
    for looks in (CAUSES, LATE):
        glyphs = [look.glyph for look in looks.values()]
        assert len(set(glyphs)) == len(glyphs)
    assert set(CAUSES) == set(Cause)
    assert set(LANES) == set(SpanKind)


def test_a_token_late_at_its_client_only_is_told_where_the_engine_had_made_it() -> None:
    told = stories.quick()
    late = Spike(
        t_ns=told.token_ns[40] + 3 * MS,
        gap_ns=60 * MS,
        cause=Cause.MERGED,
        evidence="the client got 5 outputs after 60 ms at once",
        step=4_140,
    )
    moments = StoryMoments(replace(told, spikes=(late,)))

    assert moments.late_from(None, 1) == told.token_ns[40]
    rows = draw_request(
        moments, DisplayOptions(cursor_ns=moments.late_from(None, 1)), 120, 36
    ).lines
    assert "token 41 at the client after 60.0 ms" in text(rows[-2])


def test_ticks_are_round_and_do_not_touch() -> None:
    axis = Axis(ARRIVED_NS, ARRIVED_NS + 90 * MS, 60, ARRIVED_NS)

    ticks = "".join(glyph for glyph, _ in tick_line(axis, None))

    assert ticks.split() == ["╵0", "╵20", "ms", "╵40", "ms", "╵60", "ms", "╵80", "ms"]


def test_ticks_of_many_minutes_are_those_of_a_clock() -> None:
    axis = Axis(ARRIVED_NS, ARRIVED_NS + 805 * S, 97, ARRIVED_NS)

    ticks = "".join(glyph for glyph, _ in tick_line(axis, None))

    assert "2 min" in ticks
    assert "12 min" in ticks


def strip(name: str, size: tuple[int, int] = (120, 36), **how: object) -> Sequence[str]:
    rows = drawn(name, size, **how)
    top = next(i for i, row in enumerate(rows) if "─ gaps" in row)
    return rows[top : top + 20]


def test_each_gap_is_a_column_while_there_is_room() -> None:
    rows = strip("quick")

    assert "gaps between tokens  95 ─" in rows[0]
    assert "p50 8.0 ms  p99 8.8 ms  max 8.8 ms" in rows[0]
    assert any(row.count("█") == 95 for row in rows)


def test_folded_gaps_say_so_and_the_worst_stands_for_them() -> None:
    rows = strip("long")
    marks = next(row for row in rows if row.strip().startswith("late"))

    assert "99,999, the worst of 1,042 a column" in rows[0]
    assert marks.count("H") == 1
    tall = next(row for row in rows if "1 s" in row)
    assert tall.strip().startswith("1 s")
    assert marks.index("H") == rows[2].index("█")


def test_late_tokens_are_marked_by_letters_that_are_explained() -> None:
    rows = strip("spiky", (200, 56))
    marks = next(row for row in rows if row.strip().startswith("late"))

    assert "".join(marks.split()[1:]) == "PHSCMP"  # one column is of two: the worse
    for cause in ("P long prefill 2", "H host stall 1", "? unknown 1"):
        assert any(cause in row for row in rows)


@pytest.mark.parametrize("gap", [80, 210, 400, 820])
def test_the_list_of_late_tokens_shows_the_one_under_the_cursor(gap: int) -> None:
    rows = drawn(
        "spiky", (80, 17), part=ScreenPart.TOKENS, cursor_ns=cursor_at("spiky", gap)
    )

    assert any(f"token {gap + 2:>7,} after" in row for row in rows)


def cursor_at(name: str, gap: int) -> int:
    return int(StoryMoments(STORIES[name]()).gap_ends[gap])


def test_the_cursor_names_gap_step_cause_and_evidence() -> None:
    rows = drawn("spiky", cursor_ns=cursor_at("spiky", 80))

    assert "token 82 after 212 ms" in rows[-2]
    assert "P long prefill" in rows[-2]
    assert "step #4,181" in rows[-2]
    assert "chatcmpl-771-0 had 2,048 of 2,071 tokens" in rows[-1]


def test_the_cursor_names_the_phase_it_is_in() -> None:
    moments = StoryMoments(stories.queued())
    chunk = [stop for stop in moments.phases if stop.span.kind is SpanKind.CHUNK][1]  # type: ignore[union-attr]
    rows = drawn("queued", cursor_ns=chunk.t_ns)

    assert "prefill, chunk 2 of 3 92.0 ms" in rows[-1]
    assert "2,048 tokens" in rows[-1]


def test_around_the_cursor_each_gap_is_a_column_again() -> None:
    cursor_ns = cursor_at("long", 60_999)
    rows = strip("long", zoom=Zoom.CURSOR, cursor_ns=cursor_ns)

    assert "60,952 to 61,047 of 99,999" in rows[0]
    marks = next(row for row in rows if row.strip().startswith("late"))
    assert marks[12:].index("H") == 48


def test_around_the_cursor_the_lanes_show_the_time_of_the_gaps_in_sight() -> None:
    moments = StoryMoments(stories.long())
    cursor_ns = int(moments.gap_ends[60_999])

    axis = axis_of(moments, Zoom.CURSOR, cursor_ns, 96, 96)

    assert axis.start_ns == moments.tokens[60_951]
    assert axis.end_ns == moments.tokens[60_951 + 96]


def test_around_a_phase_the_lanes_show_what_is_beside_it() -> None:
    moments = StoryMoments(stories.queued())
    phase = moments.phases[5]
    span = phase.span
    assert span is not None

    axis = axis_of(moments, Zoom.CURSOR, phase.t_ns, 96, 96)

    assert moments.start_ns <= axis.start_ns < span.start_ns
    assert span.end_ns < axis.end_ns <= moments.end_ns


def test_the_cursor_goes_through_phases_and_then_through_gaps() -> None:
    moments = StoryMoments(stories.queued())
    columns = moments.columns(500)
    seen, cursor_ns = [], moments.start_ns
    for _ in range(len(moments.phases) + len(moments.gaps)):
        seen.append(moments.stop_at(cursor_ns))
        stop = moments.moved(cursor_ns, 1, columns)
        assert stop is not None
        cursor_ns = stop.t_ns

    kinds = [stop.span.kind for stop in seen[1:] if stop and stop.span]
    assert kinds[:3] == [SpanKind.TOKENISE, SpanKind.HANDOVER, SpanKind.QUEUE]
    gaps = [stop.gap for stop in seen if stop and stop.gap is not None]
    assert gaps == list(range(len(moments.gaps)))
    assert all(a.t_ns <= b.t_ns for a, b in pairwise(filter(None, seen)))
    last = moments.moved(cursor_ns, 1, columns)
    assert last is not None
    assert last.gap == len(moments.gaps) - 1


def test_late_tokens_are_gone_through_one_after_the_other() -> None:
    moments = StoryMoments(stories.spiky())
    found, here = [], None
    while spike := moments.late_from(here, 1):
        found.append(spike)
        here = spike

    assert found == [spike.t_ns for spike in moments.story.spikes]
    assert moments.late_from(here, -1) == found[-2]


def test_blocks_and_gpu_stand_on_the_axis_of_the_lanes() -> None:
    rows = drawn("spiky")
    label = {row[:12].strip(): row[12:109] for row in rows}
    blocks = drawn("preempted")
    held = next(row for row in blocks if row.strip().startswith("KV blocks"))
    decode = next(row for row in blocks if row.strip().startswith("decode"))

    assert {"HBM", "SM active", "SM clock"} <= set(label)
    assert label["SM clock"].count("▃") in {5, 6}
    assert "1,906 MHz" in next(row for row in rows if "SM clock" in row)
    assert "peak 21" in held
    empty = [
        i
        for i, (a, b) in enumerate(zip(held[12:90], decode[12:90], strict=True))
        if a == b == " "
    ]
    assert len(empty) > 20


def test_steps_say_how_full_they_were_and_the_one_under_the_cursor_is_marked() -> None:
    part = drawn("spiky", part=ScreenPart.STEPS, cursor_ns=cursor_at("spiky", 4))
    marked = next(row for row in part if row.startswith("▸"))

    assert "#4,105" in marked
    assert "101%" in marked
    assert "2,067" in marked


def test_companions_say_who_and_how_much() -> None:
    rows = drawn("queued", part=ScreenPart.STEPS, companion=1)
    chosen = next(row for row in rows if "▸" in row)

    assert chosen.split()[-3:] == ["1-0", "1,024", "2"]
    assert "1,024" in chosen


def test_what_is_not_known_is_said_at_the_bottom_and_whole() -> None:
    rows = drawn("unknown", (80, 20), part=ScreenPart.FACTS)

    for sentence in stories.unknown().missing:
        assert any(sentence in row for row in rows)
    assert all("KV blocks" not in row for row in rows)


def test_a_long_id_is_whole_among_the_facts() -> None:
    rows = drawn("unknown", (80, 20), part=ScreenPart.FACTS)
    at = next(i for i, row in enumerate(rows) if "client's id" in row)

    pieces = [row[13:].strip() for row in rows[at : at + 4]]
    assert "".join(pieces) == stories.LONG_ID


def test_where_a_wait_leaves_room_the_facts_follow() -> None:
    rows = drawn("live", (80, 20))

    assert any("arrived 03:11:46.000" in row for row in rows)


def test_the_hint_names_keys_that_do_something() -> None:
    assert "s S by late token" in drawn("spiky")[-1]
    assert "s S" not in drawn("quick")[-1]


def test_drafts_are_told_where_there_are_any() -> None:
    assert any(
        "drafts accepted 620 of 1,800 (34%)" in r for r in drawn("spiky", (200, 56))
    )
    assert not any("drafts" in row for row in drawn("quick", (200, 56)))


def test_everything_at_once_only_where_there_is_room() -> None:
    assert parts_within(36)[0] is ScreenPart.ALL
    assert part_within(ScreenPart.ALL, 20) is ScreenPart.TIME
    assert part_within(ScreenPart.TOKENS, 20) is ScreenPart.TOKENS


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(
            name,
            size,
            id=f"{name}-{size[0]}x{size[1]}",
            marks=()
            if size in (EXTREMES if name in AT_EXTREMES else SIZES[:1])
            else pytest.mark.soak,
        )
        for name in STORIES
        for size in SIZES
    ],
)
def test_it_fits_every_size_and_cuts_no_number(
    name: str, size: tuple[int, int]
) -> None:
    moments = StoryMoments(STORIES[name]())
    stops = [None, *(stop.t_ns for stop in moments.phases[:2])]
    if len(moments.gaps):
        stops.append(int(moments.gap_ends[len(moments.gaps) // 2]))
    for part in parts_within(size[1]):
        for zoom in Zoom:
            for cursor_ns in stops:
                looking = DisplayOptions(
                    part=part, zoom=zoom, cursor_ns=cursor_ns, budget=99
                )
                drawing = draw_request(moments, looking, *size)
                assert len(drawing.lines) == size[1]
                assert max(map(width_of, drawing.lines)) <= size[0]


@pytest.mark.parametrize("size", SIZES[1:5], ids=[f"{w}x{h}" for w, h in SIZES[1:5]])
@pytest.mark.parametrize("name", ["quick", "queued", "preempted", "spiky", "live"])
def test_no_row_is_cut_where_ids_are_short(name: str, size: tuple[int, int]) -> None:
    for part in parts_within(size[1]):
        rows = drawn(name, size, part=part)
        assert not [row for row in rows if "…" in row]


def test_a_click_points_at_the_moment_of_its_column() -> None:
    moments = StoryMoments(stories.spiky())
    drawing = draw_request(moments, DisplayOptions(), 120, 36)
    rows = list(map(text, drawing.lines))
    decode = next(i for i, row in enumerate(rows) if row.strip().startswith("decode"))
    marks = next(i for i, row in enumerate(rows) if row.strip().startswith("late"))
    at = rows[marks].index("P")

    t_ns = drawing.clickable[marks](at)
    assert t_ns == moments.story.spikes[0].t_ns
    assert drawing.clickable[decode](3) is None
    middle_ns = drawing.clickable[decode](12 + 48)
    assert middle_ns is not None
    assert abs(middle_ns - (moments.start_ns + moments.end_ns) // 2) < NS_PER_S // 10
