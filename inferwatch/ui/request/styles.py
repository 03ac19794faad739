"""Glyph, ink and name of causes and phases.

Glyphs differ, so that they can be told apart without colour.
"""

from typing import NamedTuple

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.story.story import SpanKind


class CauseStyle(NamedTuple):
    """Glyph, ink and name of a cause or phase."""

    glyph: str
    ink: str
    name: str


CAUSES = {
    Cause.API: CauseStyle("·", "muted", "API"),
    Cause.MEDIA: CauseStyle("↓", "mean", "media"),
    Cause.PREPROCESS: CauseStyle("◇", "mean", "preprocessing"),
    Cause.QUEUE_STEP: CauseStyle("─", "muted", "running step"),
    Cause.QUEUE_SEQS: CauseStyle("░", "seqs", "queue: max_num_seqs"),
    Cause.QUEUE_KV: CauseStyle("▒", "kv", "queue: KV blocks"),
    Cause.QUEUE_TOKENS: CauseStyle("▓", "waiting", "queue: max_num_batched_tokens"),
    Cause.QUEUE_GRAMMAR: CauseStyle("⠛", "mean", "queue: grammar"),
    Cause.QUEUE_TRANSFER: CauseStyle("⠭", "mean", "queue: KV transfer"),
    Cause.QUEUE_ADAPTER: CauseStyle("⠇", "mean", "queue: adapter"),
    Cause.QUEUE_ENCODER: CauseStyle("⠑", "mean", "queue: encoder"),
    Cause.QUEUE_STREAMING: CauseStyle("⠢", "mean", "queue: streaming input"),
    Cause.QUEUE_HELD: CauseStyle("⠤", "mean", "queue: held prefill"),
    Cause.QUEUE_DEFERRED: CauseStyle("⠶", "mean", "queue: deferred"),
    Cause.QUEUE_OTHER: CauseStyle("⠒", "other", "queue: other"),
    Cause.PREFILL: CauseStyle("█", "prefill", "prefill"),
    Cause.PREFILL_SHARED: CauseStyle("▚", "worst", "prefill: others"),
    Cause.PREFILL_DELAYED: CauseStyle("⣀", "waiting", "prefill: left out"),
    Cause.PREFILL_HELD: CauseStyle("⣤", "waiting", "prefill: held"),
    Cause.RECOMPUTE: CauseStyle("▞", "warn", "preempted"),
    Cause.SEND: CauseStyle("»", "muted", "send"),
    Cause.TOKENISE: CauseStyle("t", "muted", "tokenise"),
    Cause.DECODE: CauseStyle("━", "decode", "decode"),
    Cause.DECODE_PROMPTS: CauseStyle("╍", "prefill", "decode: others' prompts"),
    Cause.DECODE_LEFT_OUT: CauseStyle("╌", "waiting", "decode: left out"),
    Cause.LONG_PREFILL: CauseStyle("P", "prefill", "long prefill"),
    Cause.SLOW_STEP: CauseStyle("S", "worst", "slow step"),
    Cause.CLOCK_DROP: CauseStyle("C", "bad", "clock drop"),
    Cause.COMPILATION: CauseStyle("J", "bad", "compilation"),
    Cause.HOST_STALL: CauseStyle("H", "bad", "host stall"),
    Cause.MERGED: CauseStyle("M", "muted", "merged"),
    Cause.CLIENT: CauseStyle("·", "muted", "client"),
    Cause.NETWORK: CauseStyle("·", "muted", "network"),
    Cause.RETURN: CauseStyle("·", "muted", "way back"),
    Cause.CLIENT: CauseStyle("‹", "muted", "before its send"),
    Cause.NETWORK: CauseStyle("→", "muted", "network"),
    Cause.RETURN: CauseStyle("←", "muted", "way back"),
    Cause.UNKNOWN: CauseStyle("?", "faint", "unknown"),
}
LATE = {**CAUSES, Cause.RECOMPUTE: CauseStyle("R", "warn", "preempted")}
"""Causes of late tokens, marked by letters."""
ESTIMATES = {
    *(Cause.PREFILL, Cause.PREFILL_SHARED),
    *(Cause.DECODE, Cause.DECODE_PROMPTS),
}
"""Causes measured as shares of steps, marked with ``~``."""
LANES = {
    SpanKind.NETWORK: CauseStyle("·", "muted", "network"),
    SpanKind.TOKENISE: CauseStyle("·", "muted", "tokenise"),
    SpanKind.MEDIA: CauseStyle("↓", "mean", "media"),
    SpanKind.PREPROCESS: CauseStyle("◇", "mean", "preprocess"),
    SpanKind.HANDOVER: CauseStyle("·", "muted", "hand over"),
    SpanKind.QUEUE: CauseStyle("░", "waiting", "queue"),
    SpanKind.TRANSFER: CauseStyle("⠶", "mean", "KV transfer"),
    SpanKind.CHUNK: CauseStyle("█", "prefill", "prefill"),
    SpanKind.LEFT_OUT: CauseStyle("⣀", "waiting", "left out"),
    SpanKind.PREEMPTED: CauseStyle("▞", "warn", "preempted"),
    SpanKind.RECOMPUTE: CauseStyle("▓", "warn", "recompute"),
    SpanKind.THINKING: CauseStyle("╍", "decode", "thinking"),
    SpanKind.DECODE: CauseStyle("━", "decode", "decode"),
    SpanKind.SEND: CauseStyle("»", "muted", "send"),
}
"""Lanes from top to bottom."""

HOW_TO_READ = tuple(
    " ".join(text.split())
    for text in (
        """The parts of the time to first token add up to it. Those with a ~ are shares
        of steps by tokens, estimates; what no reading explains is unknown (?).""",
        """A lane is as long as the phase took; a phase too short for a column is a thin
        line. The time behind a lane is that of its whole life.""",
        """A token is late when the gap before it is more than three times the median of
        its request and more than 5 ms. Its letter says why: P long prefill beside it,
        R preempted, S slow step, C clock drop, J compilation (JIT), H host stall, M
        merged on the way to its client, ? unknown.""",
        """Where there are more gaps than columns, the worst of a column is shown; z
        around the cursor gives each gap a column of its own.""",
    )
)
