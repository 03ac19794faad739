"""What is to be as good as possible, and which way that is."""

from enum import StrEnum


class Goal(StrEnum):
    """What settings are ranked by; each names what is measured of a trial."""

    GOODPUT = "goodput"
    """Requests per second that meet every objective, at the load asked for."""
    TOKENS = "tokens"
    """Output tokens per second."""
    LATENCY = "latency"
    """TTFT p99 at the load asked for, in seconds."""
    COST = "cost"
    """Price of a million good output tokens; needs a price."""
    KNEE = "knee"
    """The highest rate that still meets the objectives, by a search of its own."""

    @property
    def lower_is_better(self) -> bool:
        """Seconds and money; all else is to be high."""
        return self in {Goal.LATENCY, Goal.COST}
