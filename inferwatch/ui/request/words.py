"""How causes and phases look: a glyph, an ink and a name each, so that none needs two.

Glyphs differ where inks cannot be seen.
"""

from typing import NamedTuple

from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.story.story import SpanKind


class Look(NamedTuple):
    """How one of them is drawn and called."""

    glyph: str
    ink: str
    name: str


CAUSES = {
    Cause.API: Look("·", "muted", "API"),
    Cause.QUEUE_STEP: Look("─", "muted", "running step"),
    Cause.QUEUE_SEQS: Look("░", "seqs", "queue: sequences"),
    Cause.QUEUE_KV: Look("▒", "kv", "queue: KV blocks"),
    Cause.QUEUE_TOKENS: Look("▓", "waiting", "queue: token budget"),
    Cause.QUEUE_DEFERRED: Look("⠶", "mean", "queue: deferred"),
    Cause.QUEUE_OTHER: Look("⠒", "other", "queue: other"),
    Cause.PREFILL: Look("█", "prefill", "prefill"),
    Cause.PREFILL_SHARED: Look("▚", "worst", "prefill: others"),
    Cause.PREFILL_DELAYED: Look("⣀", "waiting", "prefill: left out"),
    Cause.RECOMPUTE: Look("▞", "warn", "preempted"),
    Cause.SEND: Look("»", "muted", "send"),
    Cause.LONG_PREFILL: Look("P", "prefill", "long prefill"),
    Cause.SLOW_STEP: Look("S", "worst", "slow step"),
    Cause.CLOCK_DROP: Look("C", "bad", "clock drop"),
    Cause.HOST_STALL: Look("H", "bad", "host stall"),
    Cause.MERGED: Look("M", "muted", "merged"),
    Cause.CLIENT: Look("·", "muted", "client"),
    Cause.NETWORK: Look("·", "muted", "network"),
    Cause.RETURN: Look("·", "muted", "way back"),
    Cause.CLIENT: Look("‹", "muted", "before its send"),
    Cause.NETWORK: Look("→", "muted", "network"),
    Cause.RETURN: Look("←", "muted", "way back"),
    Cause.UNKNOWN: Look("?", "faint", "unknown"),
}
LATE = {**CAUSES, Cause.RECOMPUTE: Look("R", "warn", "preempted")}
"""As marks of late tokens: a letter each."""
ESTIMATES = {Cause.PREFILL, Cause.PREFILL_SHARED}
"""Shares of steps by tokens: marked with a ``~``."""
LANES = {
    SpanKind.NETWORK: Look("·", "muted", "network"),
    SpanKind.TOKENISE: Look("·", "muted", "tokenise"),
    SpanKind.HANDOVER: Look("·", "muted", "hand over"),
    SpanKind.QUEUE: Look("░", "waiting", "queue"),
    SpanKind.TRANSFER: Look("⠶", "mean", "KV transfer"),
    SpanKind.CHUNK: Look("█", "prefill", "prefill"),
    SpanKind.LEFT_OUT: Look("⣀", "waiting", "left out"),
    SpanKind.PREEMPTED: Look("▞", "warn", "preempted"),
    SpanKind.RECOMPUTE: Look("▓", "warn", "recompute"),
    SpanKind.DECODE: Look("━", "decode", "decode"),
    SpanKind.SEND: Look("»", "muted", "send"),
}
"""From top to bottom."""

HOW_TO_READ = tuple(
    " ".join(text.split())
    for text in (
        """The parts of the time to first token add up to it. Those with a ~ are shares
        of steps by tokens, estimates; what no reading explains is unknown (?).""",
        """A lane is as long as the phase took; a phase too short for a column is a thin
        line. The time behind a lane is that of its whole life.""",
        """A token is late when the gap before it is more than three times the median of
        its request and more than 5 ms. Its letter says why: P long prefill beside it,
        R preempted, S slow step, C clock drop, H host stall, M merged on the way to
        its client, ? unknown.""",
        """Where there are more gaps than columns, the worst of a column is shown; z
        around the cursor gives each gap a column of its own.""",
    )
)
"""For the help."""
