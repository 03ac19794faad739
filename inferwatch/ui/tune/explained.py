"""What the numbers of a tune mean, for its help."""

from collections.abc import Mapping, Sequence

NUMBERS: Mapping[str, Sequence[str]] = {
    "how it works": (
        (
            "Each setting is measured with the same requests at the same moments; "
            "the warm-up is left out."
        ),
        (
            "The order is drawn. Between the others the present setting is measured "
            "again and again: what moves it is the machine, not a setting, and is "
            "taken off all."
        ),
        (
            "What is surely worse than the best is dropped; the rest is repeated "
            "until the intervals part, or the repeats or the time are used up."
        ),
        (
            "max-num-seqs and max-num-batched-tokens are turned while the engine "
            "runs, all else by a restart; each trial is a session of its own, "
            "tagged with the tune."
        ),
    ),
    "the table": (
        (
            "★ the best so far · ≈ not told apart from it · ▼ surely worse, by so "
            "much · ✗ did not start, or failed · ○ left out: the what-if model says "
            "it cannot win."
        ),
        "▶ is measured now; ● is the present setting, which all is compared with.",
        "n: trials of this setting.",
        (
            "good/s: requests per second that met every objective. tok/s: output "
            "tokens per second. TTFT p99: 99% of requests had their first token "
            "within that. cost/M: price of a million output tokens of good "
            "requests. rate/s: the highest request rate that met the objectives."
        ),
        (
            "━●━ the 95% interval of the score, all rows on one scale; without a "
            "line a setting was measured once, which tells nothing about how sure "
            "it is."
        ),
    ),
    "the rest": (
        (
            "throughput and p99: up and left is better; capitals, joined by dots, "
            "are the frontier: nothing else has both more tokens/s and a lower p99."
        ),
        (
            "the machine drifts: by how much its fastest and slowest moments of the "
            "tune differ, as all scores together tell."
        ),
        (
            "time left counts the trials that are likely to be needed still; it "
            "changes as settings are dropped."
        ),
    ),
}
