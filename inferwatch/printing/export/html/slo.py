"""Objectives and cost of a session, as cards."""

from inferwatch.formatting import format_figure, format_nines, format_rate
from inferwatch.metrics.snapshot import Snapshot


def slo_cards(shown: Snapshot) -> list[tuple[str, str]]:
    """How many requests were good, and what tokens cost; none where nobody asked."""
    found: list[tuple[str, str]] = []
    state, told = shown.slo, shown.spending
    if state is not None and state.share is not None:
        verdict = "met" if state.met else "MISSED"
        found.append((f"SLO {verdict}: {state.slo}", format_nines(state.share)))
        if state.goodput_per_s is not None:
            found.append(("goodput, req/s", format_rate(state.goodput_per_s)))
    if told is not None:
        per = (
            (f"{told.currency} per Mtok", told.per_mtok),
            (f"{told.currency} per good Mtok", told.per_mtok_good),
            ("J per prompt token", told.joules_per_prefill_token),
            ("J per decode token", told.joules_per_decode_token),
        )
        found += [(name, format_figure(x)) for name, x in per if x is not None]
    return found
