"""Capacity plans as a text table and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from inferwatch.formatting import (
    UNKNOWN,
    about,
    counted,
    duration_text,
    format_bytes,
    format_count,
    format_figure,
    format_price,
    format_rate,
    format_share,
    gigabytes_text,
    price_places,
)
from inferwatch.limits.cache import kv_bytes_per_token, kv_shards
from inferwatch.limits.devices import PCIE
from inferwatch.limits.formats import DTYPE_BITS
from inferwatch.limits.parameters import expert_bits, parameters, table_bits
from inferwatch.limits.plan import BatchLimit, CapacityPlan
from inferwatch.limits.roofline import IMPOSSIBLE, is_possible
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.speculation import MOST_HELPED, Drafting
from inferwatch.printing.summary.remedies import remedies_json, remedy_lines
from inferwatch.printing.summary.set_ups import (
    UNSHARDED,
    keeps_several,
    quantised_bits,
    ways_text,
)
from inferwatch.printing.text import GAP, Paint, plain, wrapped_sentence

Row = tuple[str, Callable[[CapacityPlan], str]]
TokenRate = Callable[[CapacityPlan], float | None]
Section = tuple[str, Sequence[Row]]
LEGEND = (
    "Times are floors and rates are ceilings, at 100% of the peaks; communication "
    "between\nGPUs, the host and the queue are excluded.\n~ is an estimate: "
    "activations, graphs, libraries; calls between GPUs; copies over PCIe."
)
JUDGED = "Measured numbers are judged with weights, KV cache and products as above"
OF_WEIGHTS_ALONE = "activations in 8 bit (W8A8) have floors of their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Measured values to compare with their floors."""

    tpot_s: float | None = None
    ttft_s: float | None = None
    tokens_per_s: float | None = None

    def checks(self, plan: CapacityPlan) -> Iterator[tuple[str, float, float | None]]:
        """Each measured time with its name and the lowest time possible."""
        if self.tpot_s is not None:
            yield "TPOT", self.tpot_s, plan.tpot_floor_s
        if self.ttft_s is not None:
            yield "TTFT", self.ttft_s, plan.ttft_floor_s
        if self.tokens_per_s is not None:
            step_s = plan.workload.batch / self.tokens_per_s
            yield "tokens/s", step_s, plan.tpot_floor_s

    def beaten(self, plan: CapacityPlan) -> bool:
        """Whether any measured time is shorter than possible."""
        checks = self.checks(plan)
        return any(is_possible(time, floor) is False for _, time, floor in checks)


def plan_text(
    name: str,
    plans: Sequence[CapacityPlan],
    measured: MeasuredTimes,
    width: int,
    paint: Paint = plain,
    currency: str = "$",
) -> str:
    """The plans as columns, as many side by side as fit."""
    sections = _sections(plans, measured, currency)
    labels = [label for _, rows in sections for label, _ in rows]
    label_width = max(map(len, labels)) + 2 * GAP
    lines = _head(name, plans[0])
    for block in _blocks(plans, sections, width - label_width):
        lines += _table(block, sections, label_width, paint)
        lines.append("")
    lines += remedy_lines(plans, width, currency)
    if any(measured.beaten(each) for each in plans):
        lines += [paint(IMPOSSIBLE, "impossible"), ""]
    if any(measured.checks(plans[0])):
        lines += [*_judged(plans, width), ""]
    return "\n".join([*lines, LEGEND])


def _judged(plans: Sequence[CapacityPlan], width: int) -> list[str]:
    """What a measurement is judged under, and what that leaves out."""
    parts = [JUDGED]
    if any(_is_of_weights_alone(each.shape) for each in plans):
        parts.append(OF_WEIGHTS_ALONE)
    if any(keeps_several(each) for each in plans):
        parts.append(f"{UNSHARDED}, which divides the KV cache further")
    return wrapped_sentence(f"{'; '.join(parts)}.", then="", width=width)


def _is_of_weights_alone(shape: ModelShape) -> bool:
    has_fewer = quantised_bits(shape) < shape.other_bits
    return has_fewer and DTYPE_BITS.get(shape.compute_dtype) == shape.other_bits


def _head(name: str, plan: CapacityPlan) -> list[str]:
    """The lines above the table, which apply to all columns."""
    shape, load = plan.shape, plan.workload
    active = plan.counted.active
    total = _parameters(plan.counted.total)
    passed = f", {_parameters(active)} active" if active != plan.counted.total else ""
    heads = "latent" if shape.mla else counted(shape.kv_heads, "KV head")
    windows = f", {shape.window_layers} with a window" if shape.window_layers else ""
    layers = counted(shape.layers, "layer")
    requests = counted(load.batch, "request")
    return [
        f"{name}: {total} parameters{passed}; {layers}{windows}, {heads}",
        f"{requests} of {load.context:,} tokens: {load.prompt:,} + {load.output:,}",
        *_drafts(load.drafting),
        "",
    ]


def _drafts(drafting: Drafting | None) -> Iterator[str]:
    if drafting is None:
        return
    by = ""
    if drafting.model is not None:
        by = f", by a model of {_parameters(parameters(drafting.model).total)}"
    yield (
        f"{counted(drafting.drafts, 'token')} drafted for each pass{by}; "
        f"{format_share(drafting.acceptance).strip()} accepted if those before were"
    )


def _blocks(
    plans: Sequence[CapacityPlan], sections: Sequence[Section], room: int
) -> Iterator[Sequence[CapacityPlan]]:
    """The plans in groups that fit side by side."""
    cells = [cell for _, rows in sections for _, cell in rows]
    widest = max(len(cell(plan)) for plan in plans for cell in cells)
    columns = max(1, room // (widest + GAP))
    for first in range(0, len(plans), columns):
        yield plans[first : first + columns]


def _table(
    plans: Sequence[CapacityPlan],
    sections: Sequence[Section],
    label_width: int,
    paint: Paint,
) -> list[str]:
    lines: list[str] = []
    cells = [cell for _, rows in sections for _, cell in rows]
    widths = [max(len(cell(plan)) for cell in cells) for plan in plans]
    for heading, rows in sections:
        lines.append(paint(heading, "heading"))
        for label, cell in rows:
            padded = (
                _coloured(cell(plan).rjust(width), paint)
                for plan, width in zip(plans, widths, strict=True)
            )
            lines.append(f"  {label}".ljust(label_width) + (" " * GAP).join(padded))
    return lines


def _coloured(cell: str, paint: Paint) -> str:
    words = cell.strip()
    if words.startswith(("no,", "impossible")):
        return paint(cell, "impossible")
    return paint(cell, "good") if words == "yes" else cell


def _sections(
    plans: Sequence[CapacityPlan], measured: MeasuredTimes, currency: str
) -> list[Section]:
    first = plans[0]
    checks = (_measured_row(measured, name) for name, *_ in measured.checks(first))
    priced = first.machine.gpu_hour is not None
    stored = first.machine.storage_bytes_per_s is not None
    speculation = _SPECULATION if first.workload.drafting is not None else ()
    several = any(plan.communication.calls for plan in plans)
    together = _COMMUNICATION if several else ()
    shared = _HEADS if any(plan.machine.tensor_parallel > 1 for plan in plans) else ()
    routed = _EXPERTS if first.shape.experts is not None else ()
    chunked = _CHUNKED if first.workload.prompt > first.workload.chunk else ()
    return [
        ("On", (*_ON, *shared)),
        ("Does it fit? Of each GPU:", _FIT),
        ("What binds decode?", (*_BINDS, *routed)),
        ("What binds a prompt?", _PROMPT),
        ("What limits the batch?", _LIMITS),
        (
            "What latency?",
            (*_LATENCY[:2], *chunked, *_LATENCY[2:], *together, *speculation, *checks),
        ),
        ("How many tokens a second?", [(n, _rate(rate)) for n, rate in _TOKEN_RATES]),
        *(
            [("What price of a million?", _prices(plans, measured, currency))]
            if priced
            else []
        ),
        ("How long does it load?", _LOADING if stored else _LOADING[:-1]),
    ]


def _measured_row(measured: MeasuredTimes, name: str) -> Row:
    def cell(plan: CapacityPlan) -> str:
        time, floor = next(
            (time, floor) for each, time, floor in measured.checks(plan) if each == name
        )
        if floor is None:
            return UNKNOWN
        if is_possible(time, floor):
            return f"{time / floor:.2f} × floor"
        return f"impossible, {time / floor:.2f} ×"

    return f"measured {name}", cell


def _parameters(count: int) -> str:
    return f"{format_figure(count / 1e9).strip()} B"


def _bits(bits: float) -> str:
    return f"{bits:.3f}".rstrip("0").rstrip(".") + " bit"


def _fits(plan: CapacityPlan) -> str:
    return "yes" if plan.fits else f"no, {gigabytes_text(-plan.left_bytes)} short"


def _overhead(plan: CapacityPlan) -> str:
    mark = "~" if plan.overhead_is_estimate else ""
    return f"{mark}{gigabytes_text(plan.overhead_bytes)}"


def _compute_from(plan: CapacityPlan) -> str:
    if plan.ridge is None:
        return UNKNOWN
    if plan.compute_bound_from is None:
        return "never"
    return counted(plan.compute_bound_from, "request")


def _intensity(plan: CapacityPlan) -> str:
    return f"{format_figure(plan.decode.intensity).strip()} FLOP/B"


def _prompt_intensity(plan: CapacityPlan) -> str:
    return f"{format_figure(plan.prefill.intensity).strip()} FLOP/B"


def _chunk_from(plan: CapacityPlan) -> str:
    if plan.ridge is None:
        return UNKNOWN
    if plan.chunk_compute_bound_from is None:
        return "never"
    return counted(plan.chunk_compute_bound_from, "token")


def _heads(plan: CapacityPlan) -> str:
    """How KV heads are shared out: divided, or each on several GPUs."""
    shape, gpus = plan.shape, plan.machine.tensor_parallel
    shards = kv_shards(shape, gpus)
    if gpus == 1:
        return "all"
    if shape.mla is not None:
        return "latent, on every GPU"
    if shards < gpus:
        return f"each on {gpus / shards:.3g} GPUs"
    return f"{shape.kv_heads / gpus:.3g} of {shape.kv_heads} each"


def _estimate(time_s: float | None) -> str:
    return UNKNOWN if time_s is None else about(duration_text(time_s))


def _communication(plan: CapacityPlan) -> str:
    return _estimate(plan.communication_s) if plan.communication.calls else "none"


def _link(plan: CapacityPlan) -> str:
    link = plan.machine.link
    return link.name if link is not None and plan.communication.calls else UNKNOWN


def _sent(plan: CapacityPlan) -> str:
    sent = plan.communication
    if not sent.calls:
        return UNKNOWN
    return f"{sent.calls:,.0f}, {format_bytes(sent.sent_bytes).strip()}"


def _pcie(plan: CapacityPlan) -> str:
    rate = plan.machine.device.pcie_bytes_per_s
    if rate is None:
        return UNKNOWN
    return f"{PCIE.get(rate, '')} {rate / 1e9:.1f}".strip()


def _ridge(plan: CapacityPlan) -> str:
    return f"{format_figure(plan.ridge).strip()} FLOP/B"


def _batch_limit(plan: CapacityPlan) -> str:
    if plan.batch_limit is BatchLimit.WEIGHTS:
        return "no room beside weights"
    return plan.batch_limit.value


def _rate(rate: TokenRate) -> Callable[[CapacityPlan], str]:
    return lambda plan: format_rate(rate(plan)).strip()


def _prices(
    plans: Sequence[CapacityPlan], measured: MeasuredTimes, currency: str
) -> list[Row]:
    """Price rows, all with the same number of decimals."""
    rates = [*_TOKEN_RATES]
    if measured.tokens_per_s is not None:
        rates.append(("at the measured rate", lambda _: measured.tokens_per_s))
    places = price_places(plan.cost(rate(plan)) for plan in plans for _, rate in rates)
    return [(name, _price(rate, currency, places)) for name, rate in rates]


def _price(
    rate: TokenRate, currency: str, places: int
) -> Callable[[CapacityPlan], str]:
    return lambda plan: format_price(plan.cost(rate(plan)), currency, places)


def _tokens_per_pass(plan: CapacityPlan) -> str:
    drafting = plan.workload.drafting
    return f"{drafting.tokens_per_pass:.2f}" if drafting is not None else UNKNOWN


def _most_helped(plan: CapacityPlan) -> str:
    most = plan.most_helped
    if most is None or most == MOST_HELPED:
        return UNKNOWN if most is None else "any batch"
    return counted(most, "request") if most else "no batch"


def _kibibytes(plan: CapacityPlan) -> str:
    return f"{kv_bytes_per_token(plan.shape) / 1024:,.1f} KiB"


_ON: tuple[Row, ...] = (
    ("GPU", lambda plan: plan.machine.device.name),
    ("parallel", lambda plan: ways_text(plan.machine)),
    ("weight format", lambda plan: _bits(quantised_bits(plan.shape))),
    ("KV cache format", lambda plan: _bits(plan.shape.kv_bits)),
    ("computed in", lambda plan: plan.shape.compute_dtype),
)
_HEADS: tuple[Row, ...] = (("KV heads", _heads),)
_FIT: tuple[Row, ...] = (
    ("fits", _fits),
    ("memory for the engine", lambda plan: gigabytes_text(plan.allowed_bytes)),
    ("weights", lambda plan: gigabytes_text(plan.weight_bytes)),
    ("overhead", _overhead),
    ("KV of this batch", lambda plan: gigabytes_text(plan.kv_bytes)),
    ("left", lambda plan: gigabytes_text(max(0.0, plan.left_bytes))),
)
_BINDS: tuple[Row, ...] = (
    ("bound by", lambda plan: plan.binds or UNKNOWN),
    ("intensity of a step", _intensity),
    ("ridge point of the GPU", _ridge),
    ("bound by compute from", _compute_from),
)
_EXPERTS: tuple[Row, ...] = (
    (
        "experts read, expected",
        lambda plan: format_share(plan.experts_touched).strip(),
    ),
)
_PROMPT: tuple[Row, ...] = (
    ("prompt bound by", lambda plan: plan.prefill_binds or UNKNOWN),
    ("intensity of a prompt", _prompt_intensity),
    ("compute-bound chunks from", _chunk_from),
)
_LIMITS: tuple[Row, ...] = (
    ("limited by", _batch_limit),
    ("requests that fit (B_max)", lambda plan: f"{plan.max_requests:,}"),
    ("tokens that fit", lambda plan: format_count(plan.max_kv_tokens).strip()),
    ("KV a token", _kibibytes),
)
_LATENCY: tuple[Row, ...] = (
    ("TPOT floor, this batch", lambda plan: duration_text(plan.tpot_floor_s)),
    ("TTFT floor, alone", lambda plan: duration_text(plan.ttft_floor_s)),
    ("E2EL floor", lambda plan: duration_text(plan.e2el_floor_s)),
    ("ITL floor, beside a chunk", lambda plan: duration_text(plan.chunk_itl_floor_s)),
)
_CHUNKED: tuple[Row, ...] = (
    ("TTFT floor, in chunks", lambda plan: duration_text(plan.chunked_ttft_floor_s)),
)
_COMMUNICATION: tuple[Row, ...] = (
    ("communication of a step", _communication),
    ("over", _link),
    ("calls, bytes sent", _sent),
    ("TPOT with it", lambda plan: _estimate(plan.tpot_estimate_s)),
)
_SPECULATION: tuple[Row, ...] = (
    ("tokens a pass, expected", _tokens_per_pass),
    ("speculation helps up to", _most_helped),
)
_TOKEN_RATES: tuple[tuple[str, TokenRate], ...] = (
    ("decode, this batch", lambda plan: plan.tokens_per_s),
    ("decode, B_max", lambda plan: plan.most_tokens_per_s),
    ("output, prompts beside", lambda plan: plan.served_tokens_per_s),
)
_LOADING: tuple[Row, ...] = (
    ("PCIe, GB/s of its lines", _pcie),
    ("over it, its share", lambda plan: duration_text(plan.load_pcie_s)),
    ("as copies go", lambda plan: _estimate(plan.load_copied_s)),
    ("from storage, all", lambda plan: duration_text(plan.load_storage_s)),
)


def as_json(
    name: str,
    plans: Sequence[CapacityPlan],
    measured: MeasuredTimes,
    conclusion: str,
) -> dict[str, Any]:
    load, counted_ = plans[0].workload, plans[0].counted
    return {
        "conclusion": conclusion,
        "model": name,
        "parameters": counted_.total,
        "active_parameters": counted_.active,
        "batch": load.batch,
        "prompt_tokens": load.prompt,
        "output_tokens": load.output,
        "context_tokens": load.context,
        "speculation": _speculation_json(load.drafting),
        "excluded": ["communication between GPUs", "host", "queue"],
        "plans": [_plan_json(plan, measured) for plan in plans],
    }


def _speculation_json(drafting: Drafting | None) -> dict[str, Any] | None:
    if drafting is None:
        return None
    return {
        "acceptance": drafting.acceptance,
        "drafts": drafting.drafts,
        "draft_model": drafting.model is not None,
        "draft_cost": None if drafting.model is not None else drafting.cost_share,
        "tokens_per_pass": drafting.tokens_per_pass,
    }


def _communication_json(plan: CapacityPlan) -> dict[str, Any]:
    sent, link = plan.communication, plan.machine.link
    return {
        "link": link.name if link is not None else None,
        "sent_bytes": sent.sent_bytes,
        "calls": sent.calls,
        "sending_s": sent.sent_bytes / link.bytes_per_s if link is not None else None,
        "estimate_s": plan.communication_s,
    }


def formats_json(plan: CapacityPlan) -> dict[str, Any]:
    """What identifies a column: its GPUs and formats."""
    machine, shape = plan.machine, plan.shape
    return {
        "gpu": machine.device.name,
        "gpu_source": machine.device.source,
        "tensor_parallel": machine.tensor_parallel,
        "pipeline_parallel": machine.pipeline_parallel,
        "data_parallel": machine.data_parallel,
        "expert_parallel": machine.expert_parallel,
        "weight_bits": shape.weight_bits,
        "table_bits": table_bits(shape),
        "expert_bits": expert_bits(shape) if shape.experts else None,
        "kv_bits": shape.kv_bits,
        "compute_dtype": shape.compute_dtype,
    }


def _plan_json(plan: CapacityPlan, measured: MeasuredTimes) -> dict[str, Any]:
    machine, shape = plan.machine, plan.shape
    return {
        **formats_json(plan),
        "fits": plan.fits,
        "memory_bytes": machine.device.memory_bytes,
        "allowed_bytes": plan.allowed_bytes,
        "total_weight_bytes": plan.total_weight_bytes,
        "weight_bytes": plan.weight_bytes,
        "overhead_bytes": plan.overhead_bytes,
        "overhead_is_estimate": plan.overhead_is_estimate,
        "kv_bytes_per_token": kv_bytes_per_token(shape),
        "kv_bytes_per_request": plan.request_kv_bytes,
        "kv_bytes": plan.kv_bytes,
        "left_bytes": plan.left_bytes,
        "max_requests": plan.max_requests,
        "max_kv_tokens": plan.max_kv_tokens,
        "decode_bytes": plan.decode.bytes_read,
        "decode_flops": plan.decode.flops,
        "decode_intensity": plan.decode.intensity,
        "ridge_point": plan.ridge,
        "experts_touched": plan.experts_touched,
        "decode_bound_by": plan.binds,
        "compute_bound_from_requests": plan.compute_bound_from,
        "prefill_bytes": plan.prefill.bytes_read,
        "prefill_flops": plan.prefill.flops,
        "prefill_intensity": plan.prefill.intensity,
        "prefill_bound_by": plan.prefill_binds,
        "chunk_compute_bound_from_tokens": plan.chunk_compute_bound_from,
        "communication": _communication_json(plan),
        "batch_limited_by": plan.batch_limit.value,
        "tpot_floor_s": plan.tpot_floor_s,
        "tpot_estimate_s": plan.tpot_estimate_s,
        "speculation_helps_up_to_requests": plan.most_helped,
        "ttft_floor_s": plan.ttft_floor_s,
        "chunked_ttft_floor_s": plan.chunked_ttft_floor_s,
        "chunk_itl_floor_s": plan.chunk_itl_floor_s,
        "e2el_floor_s": plan.e2el_floor_s,
        "decode_tokens_per_s": plan.tokens_per_s,
        "max_decode_tokens_per_s": plan.most_tokens_per_s,
        "output_tokens_per_s_with_prompts": plan.served_tokens_per_s,
        "price_per_million": plan.cost(plan.tokens_per_s),
        "price_per_million_at_max_requests": plan.cost(plan.most_tokens_per_s),
        "price_per_million_with_prompts": plan.cost(plan.served_tokens_per_s),
        "price_per_million_measured": plan.cost(measured.tokens_per_s),
        "load_pcie_floor_s": plan.load_pcie_s,
        "load_pcie_estimate_s": plan.load_copied_s,
        "load_storage_floor_s": plan.load_storage_s,
        "remedies": remedies_json(plan),
        "measured": [
            {
                "name": name,
                "step_or_prompt_s": time,
                "floor_s": floor,
                "possible": is_possible(time, floor),
                "judged_under": {
                    "weight_bits": shape.weight_bits,
                    "kv_bits": shape.kv_bits,
                    "compute_dtype": shape.compute_dtype,
                    "decode_context_parallel_size": 1,
                },
            }
            for name, time, floor in measured.checks(plan)
        ],
    }
