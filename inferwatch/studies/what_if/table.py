"""Predictions as a table of text and as JSON, the same on screen and in print."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from collectors.contract.readings import BoundBy
from inferwatch.formatting import (
    TimeUnit,
    about,
    bound_text,
    counted,
    format_count,
    format_in,
    format_rate,
    format_share,
    shared_unit,
)
from inferwatch.metrics.series.window import Quantiles
from inferwatch.printing.document import Code, Sentence
from inferwatch.printing.text import document_text, grid
from inferwatch.studies.what_if.answer import answers, between
from inferwatch.studies.what_if.outcome import LATENCIES, OF_PRIORITY, Outcome
from inferwatch.studies.what_if.prediction import (
    LONGER,
    MOST_ERROR,
    Prediction,
    QuantileCheck,
    WhatIf,
    check_name,
)
from inferwatch.studies.what_if.setting import SchedulerSetting

NAMES = {
    "ttft_s": "TTFT",
    "queue_s": "queue",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2el_s": "E2EL",
}
MOST_PRIORITIES = 8
"""Priorities that have rows."""
NOT_TOLD = "?"
"""Shown in place of a number that is not predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row: its name, its cells, and the error of the model."""

    name: str
    measured: str
    as_was: str
    error: str
    predicted: tuple[str, ...]
    """One cell for each predicted change."""


def heads(result: WhatIf, *, briefly: bool = True) -> tuple[str, ...]:
    """The headings of the predictions: what each changes; in full, by its flag."""
    return tuple(
        _head(result.setting, each.setting, briefly=briefly)
        for each in result.predictions
    )


def _head(before: SchedulerSetting, now: SchedulerSetting, *, briefly: bool) -> str:
    seqs, tokens, blocks = ("seqs", "tokens", "KV")
    if not briefly:
        seqs, tokens, blocks = map(
            bound_text, (BoundBy.SEQS, BoundBy.TOKENS, BoundBy.KV)
        )
    parts = []
    if now.max_num_seqs != before.max_num_seqs:
        parts.append(f"{seqs} {now.max_num_seqs:,}")
    if now.max_num_batched_tokens != before.max_num_batched_tokens:
        parts.append(f"{tokens} {now.max_num_batched_tokens:,}")
    if now.kv_blocks != before.kv_blocks:
        parts.append(f"{blocks} {now.kv_blocks:,}")
    if now.rate != before.rate:
        parts.append(f"rate ×{now.rate:g}")
    if now.policy is not before.policy:
        parts.append(str(now.policy) if briefly else now.policy.says)
    return ", ".join(parts) or "as it was"


def setting_text(setting: SchedulerSetting) -> str:
    parts = [
        f"max_num_seqs {setting.max_num_seqs:,}",
        f"max_num_batched_tokens {setting.max_num_batched_tokens:,}",
    ]
    if setting.kv_blocks is not None:
        parts.append(
            f"{counted(setting.kv_blocks, 'KV block')} of {setting.block_tokens} tokens"
        )
    return ", ".join(parts)


INDENT = "  "
"""Of rows that belong to the one above."""


def rows(result: WhatIf) -> Iterator[TableRow]:
    for metric in LATENCIES:
        yield from _latency_rows(result, metric)
    yield from _priority_rows(result)
    yield _plain("tokens/s", result, lambda o: format_rate(o.output_tokens_per_s))
    yield _plain("requests/s", result, lambda o: format_rate(o.requests_per_s))
    yield _plain("batch", result, lambda o: format_rate(o.batch_mean))
    if result.setting.kv_blocks is not None:
        yield _plain("KV peak", result, lambda o: format_count(o.kv_peak_blocks))
    yield _plain("preemptions", result, lambda o: format_count(o.preemptions))
    yield from _bound_rows(result)


def _bound_rows(result: WhatIf) -> Iterator[TableRow]:
    """One for each limit that binds somewhere, with its share of the time."""
    outcomes = [result.measured, result.simulated]
    outcomes += [each.outcome for each in result.predictions if each.outcome]
    binding = {each.binds for each in outcomes} - {BoundBy.NOTHING}
    if binding:
        yield _plain("queueing for", result, lambda _: "")
    for bound in sorted(binding):
        yield _plain(
            f"{INDENT}{bound_text(bound)}",
            result,
            lambda o, b=bound: format_share(o.bound_share.get(b, 0.0)),
        )


def _latency_rows(
    result: WhatIf, metric: str, priority: int | None = None
) -> Iterator[TableRow]:
    indent = "" if priority is None else INDENT
    outcomes = [result.measured, result.simulated]
    outcomes += [p.outcome for p in result.predictions if p.outcome is not None]
    for percent in MOST_ERROR:
        every = [
            getattr(_latencies(each, priority)[metric], percent) for each in outcomes
        ]
        unit, name = shared_unit(every), check_name(metric, percent, priority)
        figure, untold = result.figure_of(name), name in result.untold
        yield TableRow(
            name=f"{indent}{NAMES[metric]} {percent}, {unit.name}",
            measured=_cell(result.measured, metric, percent, unit, priority),
            as_was=_cell(result.simulated, metric, percent, unit, priority),
            error="" if figure is None else _error_text(result, figure),
            predicted=tuple(
                _predicted(each, metric, percent, unit, priority, untold=untold)
                for each in result.predictions
            ),
        )


def _priority_rows(result: WhatIf) -> Iterator[TableRow]:
    """Each priority under a line of its own, the best ones where there are many."""
    for each in result.measured.by_priority[:MOST_PRIORITIES]:
        yield _plain(
            f"priority {each.priority}", result, partial(_members_text, each.priority)
        )
        for metric in OF_PRIORITY:
            yield from _latency_rows(result, metric, each.priority)


def _members_text(priority: int, outcome: Outcome) -> str:
    found = outcome.of_priority(priority)
    return "" if found is None else counted(found.requests, "request")


def _latencies(outcome: Outcome, priority: int | None) -> Mapping[str, Quantiles]:
    if priority is None:
        return outcome.latencies
    found = outcome.of_priority(priority)
    nothing = dict.fromkeys(OF_PRIORITY, Quantiles())
    return nothing if found is None else found.latencies


def _cell(
    outcome: Outcome, metric: str, percent: str, unit: TimeUnit, priority: int | None
) -> str:
    quantiles = _latencies(outcome, priority)[metric]
    text = format_in(unit, getattr(quantiles, percent))
    return about(f" {text}").strip() if percent in quantiles.weak else text.strip()


def _predicted(
    each: Prediction,
    metric: str,
    percent: str,
    unit: TimeUnit,
    priority: int | None,
    *,
    untold: bool,
) -> str:
    if each.outcome is None or untold:
        return NOT_TOLD
    name = check_name(metric, percent, priority)
    if name not in each.unsure or not (each.low and each.high):
        return _cell(each.outcome, metric, percent, unit, priority)
    ends = [
        _cell(end, metric, percent, unit, priority) for end in (each.low, each.high)
    ]
    return between(*ends)


def _error_text(result: WhatIf, figure: QuantileCheck) -> str:
    """The relative error of the simulation, or "< ½ step" if it is that small."""
    return "< ½ step" if result.is_near(figure) else f"{figure.error:+.1%}"


def _plain(name: str, result: WhatIf, text: Any) -> TableRow:  # noqa: ANN401 - of an outcome
    return TableRow(
        name=name,
        measured=text(result.measured).strip(),
        as_was=text(result.simulated).strip(),
        error="",
        predicted=tuple(_plain_cell(each, text) for each in result.predictions),
    )


def _plain_cell(each: Prediction, text: Any) -> str:  # noqa: ANN401 - of an outcome
    if each.outcome is None:
        return NOT_TOLD
    if each.drawn_on is None or each.low is None or each.high is None:
        return str(text(each.outcome)).strip()
    ends = [text(end).strip() for end in (each.low, each.high)]
    return between(*sorted(ends, key=_number))


def _number(text: str) -> tuple[float, str]:
    """Sort key: what the text says as a number, if it is one."""
    plain = text.replace(",", "").removesuffix("%")
    return (float(plain) if plain.replace(".", "", 1).isdecimal() else 0.0), text


def sentences(result: WhatIf) -> Iterator[str]:
    """The sentences below the table: doubts, and what is not predicted."""
    names = heads(result, briefly=False)
    for head, each in zip(names, result.predictions, strict=True):
        yield from (f"{head}: {sentence}." for sentence in _about(each))
    if result.given:
        yield f"{result.given}."
    if (left := len(result.measured.by_priority) - MOST_PRIORITIES) > 0:
        many = counted(left, "worse priority", "worse priorities")
        yield f"{many} left out here: --json has all."
    for name, why in result.untold.items():
        yield f"{_named(name)} is not predicted: {why}."
    if result.closed_loop:
        yield "Users asked again when answered: arrivals follow from the answers."
    for note in result.notes:
        yield f"Less sure: {note}."
    yield (
        "error: the same load, simulated under the setting it was recorded with, "
        "against what was measured. Half of the steps lie within "
        f"{format_share(result.step_error).strip()} of what is expected of them."
    )


def _about(each: Prediction) -> Iterator[str]:
    if each.cannot is not None:
        yield f"cannot say: {each.cannot}"
    if each.drawn_on is not None:
        yield (
            "it takes larger steps than any that was seen, so what these cost is "
            f"extrapolated, and may be off by {each.drawn_on:.0%} at twice the size; "
            "recording this load under this setting would tell"
        )
    if each.unsure:
        drawn = ", extrapolated ones as far off as they may be" if each.drawn_on else ""
        yield (
            "numbers with two ends depend on how long steps take: these are of steps "
            f"{LONGER - 1:.0%} longer, or as much shorter{drawn}, as no machine is "
            "the same twice"
        )
    if each.waiting_at_end > GROWN:
        yield (
            f"{counted(each.waiting_at_end, 'request')} waited when the last one came: "
            "the queue grew, and latencies with it, for as long as the load went on"
        )
    yield from each.notes


def _named(name: str) -> str:
    metric, _, rest = name.partition(" ")
    return f"{NAMES[metric]} {rest}"


WIDTH = 80
"""Columns within which the table's heads are in full."""
GROWN = 10
"""With more requests than this in the queue at the end, the queue grew."""


def text(result: WhatIf, session_id: str) -> str:
    body = [
        [row.name, row.measured, row.as_was, row.error, *row.predicted]
        for row in rows(result)
    ]
    requests = counted(result.measured.requests, "request")
    lead = f"{session_id}: {requests} under {setting_text(result.setting)}"
    head = ["", "measured", "as it was", "error"]
    full, brief = (
        [*grid([[*head, *heads(result, briefly=each)], *body])]
        for each in (False, True)
    )
    lines = full if max(map(len, full)) <= WIDTH else brief
    table = Code(text="\n".join(lines))
    notes = (Sentence(text=each, hangs=False) for each in sentences(result))
    said = [Sentence(text=f"{each}.") for each in answers(result)]
    return document_text([said, [Sentence(text=lead, hangs=False), table], notes])


def as_json(result: WhatIf, session_id: str) -> dict[str, Any]:
    """The predictions for JSON; times in seconds, shares from 0 to 1."""
    return {
        "session_id": session_id,
        "conclusions": list(answers(result)),
        "setting": msgspec.to_builtins(result.setting),
        "measured": _outcome_json(result.measured),
        "simulated_as_it_was": _outcome_json(result.simulated),
        "errors": [
            {
                "metric": each.metric,
                "percent": each.percent,
                "priority": each.priority,
                "measured_s": each.measured_s,
                "simulated_s": each.simulated_s,
                "error": each.error,
            }
            for each in result.figures
        ],
        "not_predicted": result.untold,
        "step_error": result.step_error,
        "most_members": result.most_members,
        "closed_loop": result.closed_loop,
        "priorities_given": result.given,
        "notes": list(result.notes),
        "predictions": [
            {
                "changed": head,
                "setting": msgspec.to_builtins(each.setting),
                "outcome": _known_json(each.outcome),
                "low": _known_json(each.low),
                "high": _known_json(each.high),
                "drawn_on_error": each.drawn_on,
                "cannot": each.cannot,
                "unsure": each.unsure,
                "notes": list(each.notes),
                "waiting_at_end": each.waiting_at_end,
            }
            for head, each in zip(
                heads(result, briefly=False), result.predictions, strict=True
            )
        ],
    }


def _known_json(outcome: Outcome | None) -> dict[str, Any] | None:
    return None if outcome is None else _outcome_json(outcome)


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(outcome)
    return facts | {"binds": outcome.binds.value}
