"""The columns of the charts; None is a gap, and no step in a bin is a gap, too."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

TIMELINE = (
    *metrics(
        "timeline.",
        None,
        Metric(
            key="start_ns",
            abbr="from",
            title="Start",
            unit=Unit.NANOSECONDS,
            definition="Session time at which the first column begins.",
            formula="a multiple of the bin",
        ),
        Metric(
            key="bin_ns",
            abbr="bin",
            title="Bin",
            unit=Unit.NANOSECONDS,
            definition=(
                "How much time each column covers: 0.1 s, 0.5 s, 2.5 s, or what fits a"
                " session."
            ),
            formula="by the window",
        ),
        Metric(
            key="lost_ns",
            abbr="lost",
            title="Lost",
            unit=Unit.NANOSECONDS,
            definition="Session time at which the engine was lost; columns end there.",
            formula="unknown while there is an engine",
        ),
    ),
    *metrics(
        "timeline.",
        Vantage.FRONTEND,
        Metric(
            key="ttft_mean_s",
            abbr="TTFT",
            title="TTFT, mean",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Mean TTFT of the first tokens in the column.",
            formula="sum / count",
        ),
        Metric(
            key="ttft_max_s",
            abbr="TTFT max",
            title="TTFT, worst",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Worst TTFT of the first tokens in the column.",
            formula="max",
        ),
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
        Metric(
            key="itl_mean_s",
            abbr="ITL",
            title="ITL, mean",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Mean gap between tokens in the column.",
            formula="sum / count",
        ),
        Metric(
            key="itl_max_s",
            abbr="ITL max",
            title="ITL, worst",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Longest gap between tokens in the column.",
            formula="max",
        ),
        Metric(
            key="batch_prefill",
            abbr="prefill",
            title="Prefilling",
            unit=Unit.REQUESTS,
            definition="Requests in prefill per step, averaged over the column.",
            formula="prefill requests / steps",
        ),
        Metric(
            key="batch_decode",
            abbr="decode",
            title="Decoding",
            unit=Unit.REQUESTS,
            definition="Requests in decode per step, averaged over the column.",
            formula="decode requests / steps",
        ),
        Metric(
            key="batch_max",
            abbr="batch",
            title="Largest batch",
            unit=Unit.REQUESTS,
            definition="The most requests in one step of the column.",
            formula="max of prefill + decode requests",
        ),
        Metric(
            key="waiting_max",
            abbr="waiting",
            title="Waiting, most",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition="Longest queue of any engine in the column.",
            formula="max of waiting over steps",
        ),
        Metric(
            key="prefill_tokens",
            abbr="prefill",
            title="Prefill tokens",
            unit=Unit.TOKENS,
            definition="Prompt tokens scheduled in the column.",
            formula="sum of prefill tokens",
        ),
        Metric(
            key="output_tokens",
            abbr="out",
            title="Output tokens",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
            definition="Tokens that the steps of the column produced.",
            formula="sum of produced",
        ),
        Metric(
            key="kv_used_blocks",
            abbr="used",
            title="Used blocks",
            unit=Unit.BLOCKS,
            definition=(
                "KV blocks that live requests held at the last step of the column."
            ),
            formula="last step",
        ),
        Metric(
            key="kv_cached_blocks",
            abbr="idle-cached",
            title="Idle-cached blocks",
            unit=Unit.BLOCKS,
            definition=(
                "KV blocks that no request held, but that kept a prefix, at the last "
                "step of the column."
            ),
            formula="last step",
        ),
        Metric(
            key="kv_free_blocks",
            abbr="free",
            title="Free blocks",
            unit=Unit.BLOCKS,
            definition="KV blocks that held nothing at the last step of the column.",
            formula="last step",
        ),
        Metric(
            key="step_mean_s",
            abbr="step",
            title="Step time, mean",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Mean duration of the steps that ended in the column.",
            formula="sum / count",
        ),
        Metric(
            key="step_max_s",
            abbr="step max",
            title="Step time, worst",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Longest step that ended in the column.",
            formula="max",
        ),
        Metric(
            key="steps",
            abbr="steps",
            title="Steps",
            unit=Unit.STEPS,
            definition="Steps that ended in the column; 0 where there was none.",
            formula="count",
        ),
        Metric(
            key="bound_seqs",
            abbr="seqs",
            title="Bound by seqs",
            unit=Unit.SHARE,
            better=Better.LOWER,
            definition=(
                "Share of the steps' time when the head of the queue had to wait "
                "because max_num_seqs requests were running."
            ),
            formula="their time / time of all steps",
        ),
        Metric(
            key="bound_tokens",
            abbr="tokens",
            title="Bound by tokens",
            unit=Unit.SHARE,
            better=Better.LOWER,
            definition=(
                "Share of the steps' time when the head of the queue had to wait "
                "because the token budget was used up."
            ),
            formula="their time / time of all steps",
        ),
        Metric(
            key="bound_kv",
            abbr="KV",
            title="Bound by KV",
            unit=Unit.SHARE,
            better=Better.LOWER,
            definition=(
                "Share of the steps' time when the head of the queue had to wait for "
                "KV blocks."
            ),
            formula="their time / time of all steps",
        ),
        Metric(
            key="bound_deferred",
            abbr="deferred",
            title="Deferred",
            unit=Unit.SHARE,
            better=Better.LOWER,
            definition=(
                "Share of the steps' time when all that waited were passed over: they "
                "needed a grammar, a KV transfer, a LoRA slot or an encoder first. In "
                "records of schema 8 and before they are among the others."
            ),
            formula="their time / time of all steps",
        ),
        Metric(
            key="bound_other",
            abbr="other",
            title="Bound by other",
            unit=Unit.SHARE,
            better=Better.LOWER,
            definition=(
                "Share of the steps' time when the head of the queue had to wait for "
                "another reason."
            ),
            formula="their time / time of all steps",
        ),
        Metric(
            key="preemptions",
            abbr="preempt",
            title="Preemptions",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition="How often a request was put back into the queue in the column.",
            formula="preempted in steps",
        ),
        Metric(
            key="slowest_step",
            abbr="slowest",
            title="Slowest step",
            unit=Unit.NONE,
            definition="The longest step of the column.",
            formula="the step itself, without members",
        ),
        Metric(
            key="step_heat",
            abbr="spread",
            title="Spread of step times",
            unit=Unit.STEPS,
            definition=(
                "How many steps of the column took how long, on a scale of two cells "
                "for each doubling: two bands are two kinds of steps."
            ),
            formula="count by length in bits of the squared nanoseconds",
        ),
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
        Metric(
            key="floor_mean_s",
            abbr="floor",
            title="Step floor, mean",
            unit=Unit.SECONDS,
            definition=(
                "The least time that the column's steps could have taken on this "
                "hardware: what they read from memory at its peak, or what they "
                "computed at its peak, whichever is longer. Derived, not measured."
            ),
            formula="max(bytes / peak bytes a second, FLOP / peak FLOP/s), mean",
        ),
        Metric(
            key="gap_mean_s",
            abbr="gap",
            title="Gap between steps, mean",
            unit=Unit.SECONDS,
            definition=(
                "Time in which no step was under way though the engine had work, for "
                "each step of the column."
            ),
            formula="sum of gaps / steps",
        ),
    ),
    *metrics(
        "timeline.",
        Vantage.ENGINE,
        Metric(
            key="prefill_share",
            abbr="prefill",
            title="Share of prefill",
            unit=Unit.SHARE,
            definition="Share of the time of the column's steps that was prefill.",
            formula="sum of duration x prefill tokens / tokens scheduled, by duration",
        ),
        Metric(
            key="decode_tokens",
            abbr="decoded",
            title="Decode tokens",
            unit=Unit.TOKENS,
            definition="Tokens scheduled in the column for requests that decode.",
            formula="sum over steps",
        ),
    ),
    *metrics(
        "timeline.",
        Vantage.SCRAPE,
        Metric(
            key="running_max",
            abbr="running",
            title="Running, most",
            unit=Unit.REQUESTS,
            definition=(
                "Most requests that ran at once, of the readings in the column: what "
                "was between two readings is not seen."
            ),
            formula="max over readings, ranks added",
        ),
        Metric(
            key="kv_usage",
            abbr="used",
            title="KV usage",
            unit=Unit.SHARE,
            definition="Share of the KV blocks in use at the column's last reading.",
            formula="last reading, mean over ranks",
        ),
        Metric(
            key="restarts_ns",
            abbr="restarts",
            title="Restarts",
            unit=Unit.NANOSECONDS,
            definition="When a server began anew within the columns.",
            formula="session time at which its counters were seen to begin anew",
        ),
    ),
)
