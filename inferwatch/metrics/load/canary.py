"""The canary: tiny requests of ours to servers in use, as measured by the client."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.contract.readings import CanaryRequest
from inferwatch.metrics.load.book import told_sum
from inferwatch.metrics.series.quantiles import of_weighted
from inferwatch.metrics.series.window import Quantiles, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Results of the canary over the window, measured by its client.

    Its tokens are in every count of the server, and subtracted from none.
    """

    sent: int = 0
    failed: int = 0
    tokens: int | None = 0
    """Prompt and output tokens; None where the server does not count them."""
    ttft_s: Quantiles = field(default_factory=Quantiles)
    """From the send."""
    itl_s: Quantiles = field(default_factory=Quantiles)
    """Between chunks."""
    last: CanaryRequest | None = None


KEPT = 2_000
"""At one every ten seconds, five and a half hours of all servers together."""


class CanaryTracker:
    """Keeps the latest canary requests.

    There are few, so views count them each time.
    """

    def __init__(self) -> None:
        self._requests: deque[CanaryRequest] = deque(maxlen=KEPT)

    def take(self, request: CanaryRequest) -> None:
        self._requests.append(request)

    def saved(self) -> list[CanaryRequest]:
        return list(self._requests)

    def restore(self, saved: Iterable[CanaryRequest]) -> None:
        self._requests.extend(saved)

    def view(
        self, now_ns: int, window: Window, source: str | None = None
    ) -> Canary | None:
        """Return the results of canary requests to one server, or to all.

        None before the first such request.
        """
        every = [each for each in self._requests if source in {None, each.source}]
        if not every:
            return None
        since_ns = -1 if window.value is None else now_ns - window.value
        sent = [each for each in every if since_ns < each.sent_ns <= now_ns]
        good = [each for each in sent if each.failure is None]
        firsts = (
            each.first_token_ns - each.sent_ns
            for each in good
            if each.first_token_ns is not None
        )
        return Canary(
            sent=len(sent),
            failed=len(sent) - len(good),
            tokens=told_sum(
                count
                for each in sent
                for count in (each.prompt_tokens, each.output_tokens)
                if each.failure is None or count is not None
            ),
            ttft_s=_quantiles(list(firsts)),
            itl_s=_quantiles([gap for each in good for gap in each.gaps_ns]),
            last=max(every, key=lambda each: each.sent_ns),
        )


def _quantiles(values_ns: Sequence[int]) -> Quantiles:
    values = np.array(values_ns, dtype=np.int64)
    return of_weighted(values, np.ones_like(values), unit=1_000_000_000)
