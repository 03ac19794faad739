"""How often a Model is saved: so that going on from there never takes long."""

from collectors.clock import NS_PER_S
from collectors.readings import AnyReading, Step

MOST_EFFORT = 10_000
"""Between two checkpoints: about 40 ms of reading and folding."""
STEP_EFFORT = 4
"""In readings of other kinds; and one more for so many members:"""
MEMBERS_AN_EFFORT = 6
LONGEST_NS = 60 * NS_PER_S
"""No block of rows is forgotten in that time, however slow the engine."""


class Pace:
    """Adds up what it takes to fold the readings since the last checkpoint."""

    def __init__(self, since_ns: int | None = None) -> None:
        """Begin at the last checkpoint: whoever goes on from it keeps its pace."""
        self._effort = 0
        self._since_ns = since_ns

    def due(self, reading: AnyReading, t_ns: int) -> bool:
        """A checkpoint should follow this reading, which was there at that moment."""
        if self._since_ns is None:
            self._since_ns = t_ns
        self._effort += 1
        if type(reading) is Step:
            self._effort += STEP_EFFORT - 1 + len(reading.members) // MEMBERS_AN_EFFORT
        if self._effort < MOST_EFFORT and t_ns - self._since_ns < LONGEST_NS:
            return False
        self._effort, self._since_ns = 0, t_ns
        return True
