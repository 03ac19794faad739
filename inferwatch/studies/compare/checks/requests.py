"""Checks whether requests succeeded and whether the client was fast enough."""

from inferwatch.formatting import counted
from inferwatch.metrics.load.client_verdict import ClientState
from inferwatch.studies.compare.checks.load import BURSTINESS_TOLERANCE
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    LoadFacts,
    SessionNumbers,
)

FAILED_TOLERANCE = 0.01
FAILED_MOST = 0.5
"""With a larger share of failed requests a side no longer represents its load."""


def check_requests(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check how many requests failed.

    Nothing can be compared if most failed, as latencies leave out failed requests.
    """
    if reasons := [why for side in (a, b) if (why := _void(side))]:
        return judged("requests", reasons, None, void=True)
    shares = [_failed_share(each.load) for each in (a, b)]
    doubts = []
    if abs(shares[0] - shares[1]) > FAILED_TOLERANCE:
        doubts.append(
            f"Requests failed or were aborted: {shares[0]:.1%} of {a.name}'s, "
            f"{shares[1]:.1%} of {b.name}'s; latencies do not count them."
        )
    doubts += [_unended(run) for run in (*a.runs, *b.runs) if run.load.unended]
    counts = " and ".join(f"{each.load.requests:,}" for each in (a, b))
    failed = " and ".join(f"{share:.1%}" for share in shares)
    failed = (
        f"{failed} of them failed or were aborted" if any(shares) else "none failed"
    )
    return judged("requests", doubts, f"{counts} requests are compared; {failed}.")


def more_failed(a: ComparedSide, b: ComparedSide) -> bool:
    """Whether B's share of failed requests exceeds A's by more than the tolerance."""
    return _failed_share(b.load) > _failed_share(a.load) + FAILED_TOLERANCE


def _void(side: ComparedSide) -> str | None:
    share = _failed_share(side.load)
    if share > FAILED_MOST:
        return (
            f"{share:.0%} of {side.name}'s requests failed or were aborted, and the "
            "rest does not tell of the load that was meant: mend that and measure "
            "again."
        )
    return None


def _failed_share(load: LoadFacts) -> float:
    return load.failed / load.requests if load.requests else 0.0


def _unended(run: SessionNumbers) -> str:
    unended = run.load.unended
    they = "it counts" if unended == 1 else "they count"
    return (
        f"{counted(unended, 'request')} of {run.name} had not ended when the load "
        f"or the recording did; {they} only as far as was seen."
    )


def check_client(a: ComparedSide, b: ComparedSide) -> QualityCheck:
    """Check that the load generators were fast enough.

    If one was not, its latencies are not judged.
    """
    runs = (*a.runs, *b.runs)
    states = {run.client.state for run in runs}
    doubts = [_too_slow(r) for r in runs if r.client.state is ClientState.CLIENT_BOUND]
    doubts += [text for run in runs if (text := _in_bursts(run))]
    good = None
    if states == {ClientState.OK}:
        good = "The load generators kept up with what they measured."
    return judged("client", doubts, good)


def _in_bursts(run: SessionNumbers) -> str | None:
    """Warn if the client sent in bursts, which affects the server's numbers too."""
    planned, sent = run.load.burstiness, run.load.sent_burstiness
    if planned is None or sent is None or sent - planned <= BURSTINESS_TOLERANCE:
        return None
    return (
        f"{run.name}'s client did not send when it was to: its sends came in bursts "
        f"(burstiness {sent:.2f}, planned {planned:.2f}), which the server's numbers "
        "are of, too."
    )


def _too_slow(run: SessionNumbers) -> str:
    return (
        f"{run.name}'s client was too slow for the latencies it reports "
        f"({run.client.state}: {'; '.join(run.client.reasons)}), so nothing is said of "
        "what the client measured."
    )
