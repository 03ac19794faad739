"""The load generator's view over time, for sessions that saw no engine."""

from collections import defaultdict
from dataclasses import dataclass, field

from collectors.clock import NS_PER_S
from collectors.readings import Phase, RequestRecord, TokenTimes
from inferwatch.export.html.curves import Distribution
from inferwatch.metrics.load.request_latencies import e2el_ns, tpot_ns, ttft_ns

COLUMNS = 240
FINEST_NS = NS_PER_S // 10
MOST_WAITING = 4_096
Column = tuple[float | None, ...]


@dataclass(slots=True)
class Spread:
    """Of the latencies in a column."""

    n: int = 0
    total_ns: int = 0
    most_ns: int = 0

    def add(self, value_ns: int) -> None:
        """One more."""
        self.n += 1
        self.total_ns += value_ns
        self.most_ns = max(self.most_ns, value_ns)


@dataclass(slots=True)
class Client:
    """Columns of equal length from the session's start; warm-up is left out."""

    span_ns: int
    ttft: dict[int, Spread] = field(default_factory=lambda: defaultdict(Spread))
    itl: dict[int, Spread] = field(default_factory=lambda: defaultdict(Spread))
    tokens: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    of: dict[str, Distribution] = field(
        default_factory=lambda: defaultdict(Distribution)
    )
    _waiting: dict[str, TokenTimes | RequestRecord] = field(default_factory=dict)
    """Token times whose record has not come, records whose token times have not."""

    @property
    def bin_ns(self) -> int:
        """A column's length."""
        return max(FINEST_NS, -(-self.span_ns // COLUMNS))

    def record(self, record: RequestRecord) -> None:
        """A complete request."""
        if record.phase is not Phase.WARMUP:
            self._latencies(record)
        other = self._match(record.external_id, record)
        if isinstance(other, TokenTimes):
            self._gaps(record, other)

    def times(self, times: TokenTimes) -> None:
        """When its chunks came; the record comes before or after."""
        other = self._match(times.external_id, times)
        if isinstance(other, RequestRecord):
            self._gaps(other, times)

    def _match(
        self, external_id: str, half: TokenTimes | RequestRecord
    ) -> TokenTimes | RequestRecord | None:
        """The other half, if it came; else this one waits, as long as there is room."""
        other = self._waiting.pop(external_id, None)
        if other is None:
            self._waiting[external_id] = half
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
        return other

    def _latencies(self, record: RequestRecord) -> None:
        first_ns, last_ns = record.first_token_ns, record.last_token_ns
        waited_ns = ttft_ns(record)
        if first_ns is not None and waited_ns is not None:
            self._add("ttft_s", self.ttft, first_ns, waited_ns)
        if last_ns is not None and record.failure is None:
            self.tokens[last_ns // self.bin_ns] += record.output_tokens or 0
        for metric, value_ns in (
            ("e2el_s", e2el_ns(record)),
            ("tpot_s", tpot_ns(record)),
        ):
            if value_ns is not None:
                self.of[metric].add(value_ns)

    def columns(self) -> tuple[int, dict[str, Column]]:
        """How long a column is, and what stands in it; None is a gap."""
        count = max([*self.ttft, *self.itl, *self.tokens], default=-1) + 1
        places = range(count)
        per_s = NS_PER_S / self.bin_ns
        found: dict[str, Column] = {
            "tokens": tuple(self.tokens.get(i, 0) * per_s for i in places)
        }
        for name, spreads in (("ttft", self.ttft), ("itl", self.itl)):
            held = [spreads.get(i) for i in places]
            found[f"{name}_mean"] = tuple(
                each.total_ns / each.n / NS_PER_S if each else None for each in held
            )
            found[f"{name}_max"] = tuple(
                each.most_ns / NS_PER_S if each else None for each in held
            )
        return self.bin_ns, found

    def _gaps(self, record: RequestRecord, times: TokenTimes) -> None:
        if record.phase is Phase.WARMUP or record.failure is not None:
            return
        t_ns = times.first_ns
        for gap_ns in times.gaps_ns:
            t_ns += gap_ns
            self._add("itl_s", self.itl, t_ns, gap_ns)

    def _add(
        self, metric: str, spreads: dict[int, Spread], t_ns: int, value_ns: int
    ) -> None:
        spreads[max(t_ns, 0) // self.bin_ns].add(value_ns)
        self.of[metric].add(value_ns)
