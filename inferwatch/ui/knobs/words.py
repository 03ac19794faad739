"""What the dialog of limits says."""

from collections.abc import Sequence

from collectors.contract.readings import LimitChange
from inferwatch.feed import LimitPair
from inferwatch.ui.frame.host_question import HostAsked
from inferwatch.ui.knobs.knob_state import NAMES, KnobState

ASKED = HostAsked(
    question="This engine has other users. Turn its limits?",
    consequence="Their requests may wait longer, or run slower.",
    anyway="To turn them anyway",
    yes="Turn them",
    no="Leave them",
)
HINT = (
    "Only down from what the engine was started with, and back. Nothing is preempted."
)
RECORDED = "A recorded session: nothing can be turned here, only seen."
IDLE = "The engine is idle: what comes of it is told after its next step."
NOT_YET = "Nobody changed a limit up to the moment that is shown."
NO_OUTLOOK = (
    "↑ ↓ or digits propose another value: what it would have made of the last minutes "
    "is told here, before anything is turned."
)


def pair_text(asked: LimitPair) -> str:
    """What is other."""
    parts = zip(NAMES, (asked.max_num_seqs, asked.max_num_batched_tokens), strict=True)
    return ", ".join(f"{name} {value:,}" for name, value in parts if value is not None)


def done_text(wanted: tuple[int | None, int | None], *, keep: bool) -> str:
    """That it was done."""
    seqs, tokens = wanted
    stays = "; they stay when we go" if keep else ""
    return f"turned: max_num_seqs {seqs:,}, max_num_batched_tokens {tokens:,}{stays}"


def _in_force_text(state: KnobState, us: str) -> str:
    """Who is the watcher, and what becomes of them when it goes."""
    stays = "they stay" if state.kept else "start-up values return 10 s later"
    if us and state.by == us:
        return f"In force by us; when we leave (q), {stays}."
    return f"In force by {state.by or 'somebody'}; when that goes, {stays}."


def state_texts(state: KnobState, refusal: str | None, us: str) -> Sequence[str]:
    """Who turned what is in force, what becomes of it, and what cannot be."""
    texts = [f"▲ {refusal}"] if refusal is not None else []
    if state.in_force:
        texts.append(_in_force_text(state, us))
    elif any(each.change is LimitChange.WATCHER_GONE for each in state.limits):
        texts.append("Start-up values are back: who set others is gone.")
    elif state.limits:
        texts.append("Both are as at start.")
    texts += [
        f"{knob.name} is fixed: {knob.fixed}" for knob in state.knobs if knob.fixed
    ]
    return texts
