"""A session as one HTML page: its conclusion, charts, then tables and notes.

Charts are the engine's if there was one, else the client's.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import NoteKind
from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    duration_text,
    format_bracket,
    format_bytes,
    format_count,
    format_duration,
    format_durations,
    format_figure,
    format_nines,
    format_rate,
    format_share,
)
from inferwatch.metrics.causes.cause import SPOKEN, SlowRequests
from inferwatch.metrics.findings.finding import Subject
from inferwatch.metrics.hardware.hosts import HostState
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.load.client_verdict import client_words
from inferwatch.metrics.number import label_of
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import Stall
from inferwatch.metrics.steps.health import TROUBLES
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.metrics.steps.stacks import StalledStacks, main_thread
from inferwatch.metrics.steps.startup import StageTime, Startup
from inferwatch.printing.destination import Destination
from inferwatch.printing.document import (
    Block,
    Cards,
    Cell,
    FactList,
    PrintedHeading,
    Sentence,
    headed_charts,
    headed_table,
)
from inferwatch.printing.export.html.charts import GIGA, cdfs, time_charts
from inferwatch.printing.export.html.page_data import PageData, gather
from inferwatch.printing.export.html.profile_section import profile_section
from inferwatch.printing.export.recording import Recording, note_text
from inferwatch.printing.page import all_numbers, page, write_page
from inferwatch.printing.summary.breakdown import breakdown_blocks
from inferwatch.printing.summary.causes import slowest_rows
from inferwatch.printing.summary.latencies import COLUMNS, SHOWN, Summary
from inferwatch.printing.summary.session import run_line, summarise
from inferwatch.printing.summary.speculation import position_text
from inferwatch.printing.summary.startup import stage_words
from inferwatch.printing.summary.tenants import tenants_blocks
from inferwatch.printing.svg import clock

MOST_PARTS = 3
SIMULATED = "simulated: no GPU stands behind these readings"


def write_html(recording: Recording, destination: Destination) -> None:
    row = recording.session
    title = f"{row.name or row.id} · {row.model or 'no engine'}"
    write_page(page(title, _page(recording, gather(recording))), destination)


def _page(recording: Recording, data: PageData) -> Iterator[Block]:
    snapshot = data.snapshot
    summary = summarise(snapshot, recording.session.id, recording.session)
    yield from _about(recording)
    yield Sentence(text=f"{conclusion(summary, snapshot.slowest)}.", is_lead=True)
    yield Cards(
        pairs=[*_cards(summary), *slo_cards(snapshot), *_hardware_cards(snapshot)]
    )
    yield from headed_charts("Over the session", time_charts(data))
    yield from headed_charts("Distributions", cdfs(data))
    yield from _findings(summary["findings"])
    yield from _stacks(snapshot.stacks)
    yield from _latencies(summary)
    yield from _servers(summary["servers"])
    yield from _refused(summary["refused"])
    yield from _causes(snapshot)
    yield from breakdown_blocks(snapshot.breakdown, _clock)
    yield from tenants_blocks(snapshot.tenants)
    yield from profile_section(recording, snapshot, _clock)
    yield from _speculation(snapshot.speculation)
    yield from _startup(snapshot.startup)
    yield from _hardware(snapshot)
    if (engine := summary["engine"]) is not None:
        facts = [(k, None if v is None else str(v)) for k, v in engine.items()]
        yield from _facts("Engine", facts)
    yield from _notes(data)
    yield all_numbers("The summary as JSON, as --json prints it", summary)


def _clock(t_ns: int) -> str:
    """A moment of the session as the page's charts have it."""
    return clock(t_ns / NS_PER_S)


def _facts(
    heading: str, pairs: Sequence[tuple[str, str | Cell | None]]
) -> Iterator[Block]:
    if pairs:
        yield PrintedHeading(heading)
        yield FactList(pairs=pairs)


def _about(recording: Recording) -> Iterator[Block]:
    row = recording.session
    began = datetime.fromtimestamp(row.started_ns / NS_PER_S, UTC)
    words = [
        f"session {row.id}",
        f"{began:%Y-%m-%d %H:%M:%S} UTC",
        f"{clock(row.duration_s)} watched",
        row.command,
        f"inferwatch {row.inferwatch_version}",
    ]
    if row.state != "complete":
        words.append(row.state)
    if row.unrecorded:
        words.append(f"{counted(row.unrecorded, 'reading')} missing")
    yield Sentence(text=" · ".join(words))
    if recording.imported_from:
        yield Sentence(text=f"imported from {recording.imported_from}")


# The conclusion.


def conclusion(summary: Summary, slowest: SlowRequests | None) -> str:
    """What the session came to: verdict, gravest finding, TTFT, what made it long."""
    latencies = summary if summary["engine"] or not summary["load_runs"] else None
    source = latencies or summary["load_runs"][-1]
    findings = sorted(
        (each for each in summary["findings"] if each["subject"] != Subject.MEASURING),
        key=lambda each: -each["cost"],
    )
    verdict = summary["verdict"]
    rest = f"; {counted(len(findings) - 1, 'finding')} more" if findings[1:] else ""
    grave = findings[0] if findings else None
    failed = source["failed"] if latencies is None else summary["requests"]["failed"]
    if grave is None:
        said = f"{counted(failed, 'request')} failed" if failed else "Nothing stood out"
    else:
        text = f"{grave['title']}: {grave['sentence'].removesuffix('.')}"
        said = f"{text[:1].upper()}{text[1:]}{rest}"
    if verdict["health"] in TROUBLES:
        lead = f"{verdict['health'].upper()} {verdict['sentence'].removesuffix('.')}"
        said = lead if grave is None and not failed else f"{lead}. {said}"
    row = source.get("ttft_s", {})
    if row.get("p50") is None or row.get("brackets"):
        return said
    texts = [each.strip() for each in format_durations([row["p50"], row["p99"]])]
    p99 = about(f" {texts[1]}").strip() if "p99" in row["weak"] else texts[1]
    ttft = f"TTFT {texts[0]} at p50 and {p99} at p99"
    if latencies is None or slowest is None or not slowest.groups:
        return f"{said}. {ttft}"
    most = max(slowest.groups, key=lambda each: each.share)
    of = f"{format_share(most.share).strip()} of the slowest TTFTs was"
    return f"{said}. {ttft}; {of} {SPOKEN[most.cause]}"


# Cards.


def _cards(summary: Summary) -> list[tuple[str, str]]:
    """The most important numbers; the client's own counts if there was no engine."""
    requests, runs = summary["requests"], summary["load_runs"]
    if summary["engine"] is None and runs:
        return [
            *(
                (name, format_count(sum(run[name] for run in runs)))
                for name in ("sent", "succeeded", "failed")
            ),
            ("client", ", ".join({run["verdict"]: "" for run in runs})),
        ]
    return [
        ("output tokens/s", format_rate(summary["output_tokens_per_s"])),
        ("prompt tokens/s", format_rate(summary["prompt_tokens_per_s"])),
        ("requests finished", format_count(requests["finished"])),
        ("failed", format_count(requests["failed"])),
        *(
            [("refused", format_count(requests["refused"]))]
            if requests["refused"]
            else []
        ),
        ("steps", format_count(summary["steps"]["count"])),
        ("batch, mean", format_rate(summary["steps"]["batch_mean"])),
        ("KV peak", format_share(summary["kv_peak_usage"])),
        ("preemptions", format_count(summary["preemptions"])),
    ]


def slo_cards(snapshot: Snapshot) -> list[tuple[str, str]]:
    """SLO attainment and cost of tokens; empty without objectives and prices."""
    cards: list[tuple[str, str]] = []
    state, spending = snapshot.slo, snapshot.spending
    if state is not None and state.share is not None:
        verdict = "met" if state.met else "MISSED"
        cards.append((f"SLO {verdict}: {state.slo}", format_nines(state.share)))
        if state.goodput_per_s is not None:
            cards.append(("goodput, req/s", format_rate(state.goodput_per_s)))
    if spending is not None:
        per = (
            (f"{spending.currency} per Mtok", spending.per_mtok),
            (f"{spending.currency} per good Mtok", spending.per_mtok_good),
            ("J per prompt token", spending.joules_per_prefill_token),
            ("J per decode token", spending.joules_per_decode_token),
        )
        cards += [(name, format_figure(x)) for name, x in per if x is not None]
    return cards


def _hardware_cards(snapshot: Snapshot) -> list[tuple[str, str]]:
    hardware = snapshot.hardware
    mean = hardware.hbm_bytes_per_s_mean
    of = f" of {hardware.gpus} GPUs" if hardware.gpus > 1 else ""
    cards = (
        (f"HBM, mean GB/s{of}", None if mean is None else mean / GIGA, format_rate),
        ("SM active, mean", hardware.sm_active_mean, format_share),
        (f"power, mean W{of}", hardware.power_w_mean, format_count),
        ("J per output token", hardware.joules_per_token, format_figure),
    )
    return [(name, show(value)) for name, value, show in cards if value is not None]


# Latencies, by server and by client.


def _latencies(summary: Summary) -> Iterator[Block]:
    """The server's latencies, then those of each load run.

    Values from too few samples are grey.
    """
    yield from _latency_table("server", summary)
    runs = summary["load_runs"]
    for run in runs:
        named = f", {run_line(run)}" if len(runs) > 1 else ""
        yield from _latency_table(f"client{named}", run)
        yield _verdict(run)
    yield Sentence(text="~ rests on fewer than 10/(1-p) samples.")


def _latency_table(heading: str, rows: Summary) -> Iterator[Block]:
    metrics = [name for name in SHOWN if rows.get(name, {}).get("n")]
    if metrics:
        cells = (_latency(name, rows[name]) for name in metrics)
        yield from headed_table(f"Latencies, {heading}", ("n", *COLUMNS), cells)


def _latency(metric: str, row: Summary) -> Iterator[str | Cell]:
    yield Cell(text=LATENCIES[metric].label, aside=row["vantage"])
    yield format_count(row["n"])
    texts = format_durations(row[column] for column in COLUMNS)
    ends = row.get("brackets") or {}
    for column, exact in zip(COLUMNS, map(str.strip, texts), strict=True):
        end = ends.get(column)
        text = format_bracket(*end) if end else exact
        weak = column in row["weak"]
        yield Cell(text=about(text), tone="weak") if weak else text


def _verdict(client: Summary) -> Sentence:
    """Whether the client was fast enough for its latencies, and if not, why."""
    words = client_words(client["verdict"])
    verdict = f"{words[0].upper()}{words[1:]}"
    if not client["reasons"]:
        return Sentence(text=f"{verdict}.")
    why = [*client["reasons"], *([client["cause"]] if client["cause"] else [])]
    sentence = (
        f"{verdict}: {'; '.join(why)}. These numbers are the client's, not the "
        "server's."
    )
    return Sentence(text=f"▲ {sentence}", tone="doubt")


def _servers(servers: Sequence[Summary]) -> Iterator[Block]:
    if servers:
        heads = ("via", "running", "waiting", "KV", "out tok/s", "TTFT, mean")
        rows = map(_server, servers)
        yield from headed_table("Servers, at the end", heads, rows, first="server")


def _server(server: Summary) -> Iterator[str]:
    rank = f" rank {server['rank']}" if server["rank"] != "0" else ""
    lost = "" if server["answers"] else f" (no answer: {server['why']})"
    yield f"{server['name']}{rank}{lost}"
    yield server["via"]
    yield format_count(server["running"])
    yield format_count(server["waiting"])
    yield format_share(server["kv_usage"])
    yield format_rate(server["output_tokens_per_s"])
    yield format_duration(server.get("ttft_s", {}).get("mean"))


def _refused(rows: Sequence[Summary]) -> Iterator[Block]:
    if rows:
        yield from headed_table(
            "Refused requests",
            ("route", "status", "reason", "requests", "told by"),
            (
                (
                    each["route"] or UNKNOWN,
                    each["status"] or UNKNOWN,
                    each["why"],
                    f"{each['count']:,}",
                    each["vantage"],
                )
                for each in rows
            ),
        )


# Why requests were slow, and stalls of the scheduler.


def _causes(snapshot: Snapshot) -> Iterator[Block]:
    if snapshot.slowest is not None and snapshot.slowest.groups:
        yield from _slowest(snapshot.slowest)
    if rows := slowest_rows(snapshot):
        names = ("TTFT", "where it went", "longest gap", "because of")
        yield from headed_table("Slowest requests", names, map(_request, rows))
    if snapshot.stalls:
        yield from headed_table(
            "Stalls", ("at", "took", "what"), map(_stall, snapshot.stalls)
        )


def _slowest(slowest: SlowRequests) -> Iterator[Block]:
    yield from headed_table(
        "Why requests were slow",
        ("of their TTFT", "requests it took most of"),
        (
            (SPOKEN[each.cause], format_share(each.share), f"{each.requests:,}")
            for each in slowest.groups
        ),
    )
    which = "from p99 on" if slowest.is_p99 else "the slowest tenth"
    text = f"{counted(slowest.n, 'request')} of {slowest.of:,}: {which}"
    yield Sentence(text=f"{text}; shares are of their time to the first token")


def _request(row: RequestRow) -> Iterator[str]:
    yield row.name
    yield format_duration(row.ttft_s)
    parts = sorted(row.ttft_parts, key=lambda part: -part[1])[:MOST_PARTS]
    texts = (f"{format_duration(part_s).strip()} {cause}" for cause, part_s in parts)
    yield ", ".join(texts) or UNKNOWN
    yield format_duration(row.itl_max_s)
    yield "" if row.itl_cause is None else SPOKEN[row.itl_cause]


def _stall(stall: Stall) -> Iterator[str]:
    yield stall.kind
    yield clock(stall.start_ns / NS_PER_S)
    yield format_duration((stall.end_ns - stall.start_ns) / NS_PER_S)
    yield stall.evidence


def _speculation(speculation: Speculation | None) -> Iterator[Block]:
    if speculation is None:
        return
    length = speculation.acceptance_length
    numbers = (
        (Speculation.drafts, format_count(speculation.drafts)),
        (Speculation.drafted_tokens, format_count(speculation.drafted_tokens)),
        (Speculation.accepted_tokens, format_count(speculation.accepted_tokens)),
        (Speculation.wasted_tokens, format_count(speculation.wasted_tokens)),
        (Speculation.acceptance, format_share(speculation.acceptance)),
        (Speculation.acceptance_length, UNKNOWN if length is None else f"{length:.2f}"),
        (
            Speculation.acceptance_by_position,
            position_text(speculation.acceptance_by_position) or UNKNOWN,
        ),
    )
    facts = [(label_of(field), text.strip()) for field, text in numbers]
    yield from _facts(f"Speculative decoding, {speculation.vantage}", facts)


def _startup(startup: Startup | None) -> Iterator[Block]:
    if startup is None:
        return
    heads = ("took", "bytes", "rate", "compiled")
    whole = duration_text(startup.duration_s)
    yield from headed_table(f"Start-up, {whole}", heads, map(_stage, startup.stages))


def _stage(stage: StageTime) -> Iterator[str]:
    slowest = "" if stage.worker is None else f" (worker {stage.worker})"
    took, rate, cached = stage_words(stage)
    yield from (f"{stage.stage}{slowest}", took, format_bytes(stage.n_bytes))
    yield from (rate or UNKNOWN, cached)


# A row for each GPU and each host, over the whole session.


def _hardware(snapshot: Snapshot) -> Iterator[Block]:
    gpus = snapshot.gpus
    if gpus:
        names = ("HBM, mean", "of peak", "SM active", "power, mean", "limit", "energy")
        heads = (*names, "throttled", "memory", "measured by")
        yield from headed_table("GPUs", heads, map(_gpu, gpus))
        if any(gpu.is_simulated for gpu in gpus):
            yield Sentence(text=f"▲ {SIMULATED}", tone="doubt")
    reason = snapshot.hardware.no_gpu
    if reason and not gpus and snapshot.hosts:
        yield PrintedHeading("GPUs")
        yield Sentence(text=f"none: {reason}")
    hosts = [host for host in snapshot.hosts if host.info is not None]
    if hosts:
        of_host = ("processor", "cores", "memory", "API loop lag, worst")
        yield from headed_table("Hosts", of_host, map(_host, hosts))


def _gpu(gpu: GpuState) -> Iterator[str]:
    info, mean = gpu.info, gpu.hbm_bytes_per_s_mean
    number = "" if info.index is None else f"{info.index} "
    named = f"GPU {number}{info.name or ''} {info.profile or ''}".strip()
    simulated = " (simulated)" if gpu.is_simulated else ""
    lost = f" (lost: {info.lost_because})" if info.lost_because else ""
    others = " (not the engine's)" if gpu.watched is False else ""
    yield f"{named}{simulated}{others}{lost}"
    yield _with_unit(None if mean is None else mean / GIGA, "GB/s")
    yield format_share(gpu.hbm_share_mean)
    yield format_share(gpu.sm_active_mean)
    yield _with_unit(gpu.power_w_mean, "W")
    yield _with_unit(gpu.power_limit_w, "W")
    yield _with_unit(None if gpu.energy_j is None else gpu.energy_j / 1e3, "kJ")
    shares = {why: share for why, share in gpu.throttled.items() if share}
    text = ", ".join(f"{why} {format_share(share)}" for why, share in shares.items())
    yield text or ("no" if gpu.throttled else UNKNOWN)
    yield format_bytes(gpu.memory_used_bytes)
    yield gpu.via or UNKNOWN


def _host(host: HostState) -> Iterator[str]:
    info = host.info
    yield (info.name if info else host.source) or "host"
    yield (info.cpu if info else None) or UNKNOWN
    yield format_count(info.cores if info else None)
    yield format_bytes(info.memory_bytes if info else None)
    lag_s = host.api_loop_lag_s
    yield UNKNOWN if lag_s is None else f"{lag_s * 1e3:.1f} ms"


def _with_unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{format_rate(value)} {unit}"


# Findings and notes.


def _findings(findings: Sequence[Summary]) -> Iterator[Block]:
    facts = []
    for each in findings:
        begun, until_s = clock(each["since_s"]), each["until_s"]
        span = f"{begun} to {'the end' if until_s is None else clock(until_s)}"
        facts.append((span, f"{each['title']}: {each['sentence']}"))
    yield from _facts("Findings", facts)


def _stacks(stacks: StalledStacks | None) -> Iterator[Block]:
    """What held the engine in its latest stall, and where its processes were."""
    if stacks is None:
        return
    facts: list[tuple[str, str | Cell | None]] = [("held by", stacks.sentence)]
    for each in stacks.processes:
        main = main_thread(each)
        at = (each.why or UNKNOWN) if main is None else " ← ".join(main.frames)
        facts.append((f"{each.process} {each.pid}", at))
    yield from _facts(f"Stalled at {clock(stacks.stalled_ns / NS_PER_S)}", facts)


def _notes(data: PageData) -> Iterator[Block]:
    """Notes and bookmarks in order of time; long load plans are folded."""
    rows: list[tuple[int, str, str | Cell]] = [
        (note.t_ns, str(note.kind), note_text(note)) for note in data.snapshot.notes
    ]
    for each in data.plans:
        folded = Cell(text=f"load plan {each.plan}", folded="load plan")
        rows.append((each.t_ns, str(NoteKind.STARTED), folded))
    rows += [(t_ns, "bookmark", text) for t_ns, text in data.bookmarks]
    rows += [(t_ns, "limits", text) for t_ns, text in data.limits]
    rows.sort(key=lambda each: each[0])
    yield from _facts(
        "Notes",
        [(f"{clock(t_ns / NS_PER_S)} {kind}", text) for t_ns, kind, text in rows],
    )
