"""What a session was asked: before anything is compared, this must be alike."""

import numpy as np

from inferwatch.compare.latencies import (
    CLIENT_ABORTED,
    CLIENT_DONE,
    PROPER,
    ClientRequests,
    Requests,
)
from inferwatch.compare.rows import UNKNOWN
from inferwatch.compare.session_numbers import LoadFacts
from inferwatch.compare.span import Span
from inferwatch.metrics.series.quantiles import Ints


def load_facts(requests: Requests, client: ClientRequests, span: Span) -> LoadFacts:
    """By the server where it was watched, else by the client."""
    if len(requests):
        columns = requests.columns
        arrived, added = columns["arrived_ns"], columns["added_ns"]
        came_ns = np.where(arrived != UNKNOWN, arrived, added)
        ended = columns["finished_ns"] != UNKNOWN
        failed = ended & (columns[PROPER] == 0)
    else:
        columns = client.columns
        came_ns = columns["intended_ns"]
        failed = (columns[CLIENT_DONE] == 0) & (columns[CLIENT_ABORTED] == 0)
    inside = (came_ns >= span.start_ns) & (came_ns < span.end_ns)
    n = int(inside.sum())
    return LoadFacts(
        requests=n,
        per_s=n / span.length_s,
        prompt_tokens=_mean(columns["prompt_tokens"][inside]),
        output_tokens=_mean(columns["output_tokens"][inside]),
        burstiness=_burstiness(came_ns[inside]),
        failed=int((failed & inside).sum()),
    )


def _mean(values: Ints) -> float | None:
    known = values[values != UNKNOWN]
    return float(known.mean()) if len(known) else None


def _burstiness(came_ns: Ints) -> float | None:
    gaps = np.diff(np.sort(came_ns))
    if len(gaps) < 20 or not gaps.mean():
        return None
    return float(gaps.std() / gaps.mean())
