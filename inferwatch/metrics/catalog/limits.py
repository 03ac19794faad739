"""How far steps are from what the hardware allows, and whose its memory is."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

LEFT_OUT = (
    "all-reduce and other communication, activations and sampling are left out, so "
    "that it is a floor"
)

LIMITS = (
    *metrics(
        "limits.",
        Vantage.ENGINE,
        Metric(
            key="peak",
            abbr="peak",
            title="Peaks of the hardware",
            unit=Unit.NONE,
            definition=(
                "What the devices of one rank can do together: bytes a second of their "
                "memory and FLOP/s at the dtype the model computes in; of GPUs by data "
                "sheet, clock and bus width or --peak-gbps and --peak-tflops, of a CPU "
                "as doctor --measure-peak measured it."
            ),
            formula="peak of one device × tensor parallel × pipeline stages",
            span=NOW,
        ),
        Metric(
            key="shape",
            abbr="shape",
            title="Shape of the model",
            unit=Unit.NONE,
            definition=(
                "Layers, heads, sizes and bits, as the engine's own configuration says."
            ),
            formula="from the configuration of the model",
            span=NOW,
        ),
        Metric(
            key="parameters",
            abbr="params",
            title="Parameters",
            unit=Unit.NONE,
            definition="How many numbers the model was trained to.",
            formula="from the shapes of its matrices",
            span=NOW,
        ),
        Metric(
            key="active_parameters",
            abbr="active",
            title="Active parameters",
            unit=Unit.NONE,
            definition=(
                "Parameters that one token passes: all, but the experts that it is not "
                "routed to."
            ),
            formula="parameters - experts not used",
            span=NOW,
        ),
        Metric(
            key="weight_bytes",
            abbr="weights",
            title="Weights",
            unit=Unit.BYTES,
            better=Better.LOWER,
            definition=(
                "What the weights take, all parts of a rank together: as loaded, else "
                "as the shape says."
            ),
            formula="parameters × bits / 8",
            span=NOW,
        ),
        Metric(
            key="kv_bytes_per_token",
            abbr="KV/token",
            title="KV cache of a token",
            unit=Unit.BYTES,
            better=Better.LOWER,
            definition="What keys and values of one token take, in all layers.",
            formula="2 × layers × KV heads × head size × bits / 8",
            span=NOW,
        ),
        Metric(
            key="decode",
            abbr="decode",
            title="Steps that decode",
            unit=Unit.NONE,
            definition=(
                "Where steps that decode alone stand under the roofline, together."
            ),
            formula="sums over the steps without prefill requests",
        ),
        Metric(
            key="prefill",
            abbr="prefill",
            title="Steps with prompts",
            unit=Unit.NONE,
            definition=(
                "Where steps with prompt tokens stand under the roofline, together."
            ),
            formula="sums over the steps with prefill requests",
        ),
        Metric(
            key="split",
            abbr="split",
            title="Where the time went",
            unit=Unit.NONE,
            definition=(
                "The time with work: the floors of its steps, what they took beyond, "
                "and the gaps between them."
            ),
            formula="shares of step time and gaps",
        ),
        Metric(
            key="tpot_floor_s",
            abbr="TPOT floor",
            title="TPOT floor",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "The least time for a token at the batches that were run: mean floor "
                f"of the steps that decode; {LEFT_OUT}, and pipeline stages add up."
            ),
            formula="mean of max(bytes / bandwidth, FLOP / peak) × stages",
        ),
        Metric(
            key="memory",
            abbr="memory",
            title="Memory budget",
            unit=Unit.NONE,
            definition="Who has the memory of each worker's device.",
            formula="as the engine profiled it, and as the driver tells",
            span=NOW,
        ),
        Metric(
            key="max_requests",
            abbr="B_max",
            title="Requests that fit",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            definition=(
                "How many requests with the context of the present mix fit into the KV "
                "cache of all ranks together, the last block of each half full."
            ),
            formula="KV cache / KV of a mean request",
        ),
        Metric(
            key="tokens_per_request",
            abbr="context",
            title="Context of a request",
            unit=Unit.TOKENS,
            definition="Tokens in the cache of a request in decode, mean over steps.",
            formula="context of members / members",
        ),
        Metric(
            key="savings",
            abbr="savings",
            title="What other formats free",
            unit=Unit.NONE,
            definition=(
                "What FP8 weights, 4-bit weights or an FP8 cache would free and speed "
                "up, of those that the model does not have; all may change its output."
            ),
            formula="from its shape in other bits",
        ),
        Metric(
            key="impossible",
            abbr="impossible",
            title="Faster than possible",
            unit=Unit.NONE,
            better=Better.LOWER,
            definition=(
                "Steps whose result was there sooner than their floor allows, by over "
                "1%: check clocks, dtype, speculative decoding, the peaks or the "
                "measurement; a prefix that requests share, or experts that tokens "
                "prefer, can explain a little."
            ),
            formula="earliest end, each step at its floor, after its end",
        ),
        Metric(
            key="missing",
            abbr="missing",
            title="What is missing",
            unit=Unit.NONE,
            definition="Why not more is known of the limits, and what would tell.",
            formula="from what was not told",
            span=NOW,
        ),
    ),
    *metrics(
        "limits.",
        Vantage.GPU,
        Metric(
            key="measured_mbu",
            abbr="MBU",
            title="Memory bandwidth used, measured",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            definition=(
                "Share of the engine's memory bandwidth that its GPUs measured, idle "
                "time included."
            ),
            formula="dram_active, mean",
        ),
        Metric(
            key="measured_mfu",
            abbr="tensor",
            title="Tensor pipes active",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            definition=(
                "Share of the cycles in which tensor pipes were in use, idle time "
                "included: MFU is at most that."
            ),
            formula="tensor_active, mean",
        ),
    ),
)

OPERATING_POINT = metrics(
    "operating_point.",
    Vantage.ENGINE,
    Metric(
        key="steps",
        abbr="steps",
        title="Steps",
        unit=Unit.STEPS,
        definition="How many steps of this kind ended.",
        formula="count",
    ),
    Metric(
        key="intensity",
        abbr="FLOP/B",
        title="Arithmetic intensity",
        unit=Unit.NONE,
        definition=(
            "FLOP for each byte moved: below the ridge memory binds, above it compute."
        ),
        formula="FLOP / bytes, sums over steps",
    ),
    Metric(
        key="flops",
        abbr="FLOP/s",
        title="FLOP/s achieved",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "What the model had to compute for these batches, over the time of these "
            "steps; derived, not measured."
        ),
        formula="FLOP / time of steps",
    ),
    Metric(
        key="bytes_per_s",
        abbr="GB/s",
        title="Bytes a second, derived",
        unit=Unit.GIGABYTES_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Weights and KV cache that these batches had to read, over the time of "
            "these steps; derived, not measured."
        ),
        formula="bytes / time of steps",
    ),
    Metric(
        key="bound",
        abbr="bound by",
        title="Bound by",
        unit=Unit.NONE,
        definition="Which of memory and compute makes the larger part of their floors.",
        formula="sums of floors by what binds",
    ),
    Metric(
        key="floor_s",
        abbr="floor",
        title="Floor of a step",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=f"The least time for such a step, mean; {LEFT_OUT}.",
        formula="mean of max(bytes / bandwidth, FLOP / peak)",
    ),
    Metric(
        key="step_s",
        abbr="step",
        title="Time of a step",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="What such a step took, mean, the gap before it left out.",
        formula="duration of steps, mean",
    ),
    Metric(
        key="mbu",
        abbr="MBU",
        title="Memory bandwidth used",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="Bytes a second of these steps as a share of the peak; derived.",
        formula="bytes / time of steps / peak",
    ),
    Metric(
        key="mfu",
        abbr="MFU",
        title="FLOP used",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="FLOP/s of these steps as a share of the peak; derived.",
        formula="FLOP / time of steps / peak",
    ),
)

TIME_SPLIT = metrics(
    "time_split.",
    Vantage.ENGINE,
    Metric(
        key="memory_floor",
        abbr="memory",
        title="Bound by memory",
        unit=Unit.SHARE,
        definition=(
            "Share of the time with work that steps bound by memory need at the least."
        ),
        formula="floors by memory / (time of steps + gaps)",
    ),
    Metric(
        key="compute_floor",
        abbr="compute",
        title="Bound by compute",
        unit=Unit.SHARE,
        definition=(
            "Share of the time with work that steps bound by compute need at the least."
        ),
        formula="floors by compute / (time of steps + gaps)",
    ),
    Metric(
        key="inefficiency",
        abbr="beyond floor",
        title="Beyond the floor",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the time with work in which a step was under way for longer than "
            "its floor: kernels, launches, communication, sampling, and the host where "
            "it is within a step."
        ),
        formula="(time of steps - floors) / (time of steps + gaps)",
    ),
    Metric(
        key="host_gap",
        abbr="host gap",
        title="Gap between steps",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the time with work in which no step was under way: the host "
            "prepared or sent something."
        ),
        formula="gaps / (time of steps + gaps)",
    ),
    Metric(
        key="idle_share",
        abbr="idle",
        title="Without work",
        unit=Unit.SHARE,
        definition=(
            "Share of the window without any work, mean over ranks; no part of the sum."
        ),
        formula="1 - (time of steps + gaps) / (window × ranks)",
    ),
)

DEVICE_MEMORY = metrics(
    "device_memory.",
    Vantage.ENGINE,
    Metric(
        key="rank",
        abbr="rank",
        title="Rank",
        unit=Unit.NONE,
        definition="The data-parallel rank of the worker.",
        formula="from the engine",
    ),
    Metric(
        key="worker",
        abbr="worker",
        title="Worker",
        unit=Unit.NONE,
        definition=(
            "Its place among the tensor- and pipeline-parallel workers of the rank."
        ),
        formula="from the engine",
    ),
    Metric(
        key="gpu",
        abbr="GPU",
        title="GPU of a worker",
        unit=Unit.NONE,
        definition="The UUID of its device.",
        formula="from the engine",
    ),
    Metric(
        key="total_bytes",
        abbr="total",
        title="Memory of the device",
        unit=Unit.BYTES,
        definition="What the device has.",
        formula="from the driver, else from the engine",
    ),
    Metric(
        key="allowed_bytes",
        abbr="allowed",
        title="Memory allowed",
        unit=Unit.BYTES,
        definition="What the engine may use of it: gpu_memory_utilization.",
        formula="from the engine",
    ),
    Metric(
        key="parts",
        abbr="parts",
        title="Parts of the memory",
        unit=Unit.BYTES,
        definition=(
            "Weights, KV cache, activations, graphs and workspace as the engine "
            "profiled them, each with where it was read; other is what the driver "
            "counts besides, other processes included, and free what it has left."
        ),
        formula="from the engine; used - parts; total - used",
    ),
    Metric(
        key="load_s",
        abbr="loaded in",
        title="Loading of the weights",
        unit=Unit.SECONDS,
        definition="What loading its weights took the engine when it started.",
        formula="from vLLM's log; of the first worker on this host",
    ),
    Metric(
        key="load_floor_s",
        abbr="load floor",
        title="Floor of loading",
        unit=Unit.SECONDS,
        definition=(
            "What the weights need over the GPU's PCIe at the least. What the storage "
            "allows is not known here: inferwatch plan --storage-gbps reckons with it."
        ),
        formula="weight bytes / PCIe bytes a second, one way",
    ),
    span=NOW,
)

SAVING = metrics(
    "saving.",
    Vantage.ENGINE,
    Metric(
        key="name",
        abbr="format",
        title="Another format",
        unit=Unit.NONE,
        definition="What would be kept in fewer bits; it may change the output.",
        formula="8 bits; 4.25 with scales",
    ),
    Metric(
        key="freed_bytes",
        abbr="frees",
        title="Memory freed",
        unit=Unit.BYTES,
        better=Better.HIGHER,
        definition="How much less the same weights, or as many cached tokens, take.",
        formula="bytes now - bytes then, of all ranks",
    ),
    Metric(
        key="more_requests",
        abbr="more",
        title="More requests",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="How many more requests of the present mix would fit with it.",
        formula="freed / KV of a mean request then",
    ),
    Metric(
        key="floor_s",
        abbr="floor then",
        title="Floor with it",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="Mean floor of a step that decodes, with it.",
        formula="floor now × that of the mean step then / now",
    ),
    Metric(
        key="helps",
        abbr="helps",
        title="Whether it helps",
        unit=Unit.NONE,
        definition=(
            "It eases what binds: requests wait for KV blocks or were preempted, or "
            "decode uses over half of the bandwidth and would have a floor shorter by "
            "over 5%."
        ),
        formula="bound by KV, preemptions, MBU and both floors",
    ),
)
