"""Diagnoses of speculative decoding: drafts that cost more than they bring."""

from collectors.contract.readings import BoundBy
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, setting_text
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.findings.queue import HELD
from inferwatch.metrics.findings.work import ITL
from inferwatch.metrics.floor.view import Bound
from inferwatch.metrics.steps.speculation import POSITIONS

LEAST_DRAFTED = 100
"""Drafted tokens in a minute below which their acceptance is by chance."""


class LowAcceptance(Diagnosis):
    """Most of the drafted tokens are verified and thrown away."""

    NAME, TITLE = "low_acceptance", "low acceptance"
    SUBJECT = Subject.ENGINE
    MANY = "throw most of the drafted tokens away"
    MISSES = ITL
    LOW = 0.4
    """Acceptance below which it is low, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        drafts = facts.drafts.sums
        if not facts.drafts.rows or drafts["drafted_tokens"] < LEAST_DRAFTED:
            return None
        if drafts["accepted_tokens"] >= self.LOW * drafts["drafted_tokens"]:
            return None
        return _cost(facts)

    def sentence(self, facts: Facts) -> str:
        drafted, wasted = _drafted(facts), _wasted(facts)
        return (
            f"Of {drafted:,} drafted tokens {wasted:,} were verified and thrown away: "
            f"{1 - wasted / max(drafted, 1):.0%} are accepted"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        shares = ", ".join(f"{share:.0%}" for share in _by_position(facts))
        text = f"{_waste_share(facts):.0%} of the tokens that such steps compute"
        text = f"accepted by position: {shares}; {text} wasted" if shares else text
        return (Evidence(text=text, page="steps", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (_shorter(facts),)


class SpeculationAtFullBatch(Diagnosis):
    """Drafts take the compute that a full batch needs for itself."""

    NAME, TITLE = "speculation_at_full_batch", "speculation at a full batch"
    SUBJECT = Subject.ENGINE
    MANY = "verify drafts in a full batch"
    MISSES = ITL
    WASTED = 0.2
    """Share of the computed tokens that are drafts thrown away, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        if not facts.drafts.rows or _drafted(facts) < LEAST_DRAFTED:
            return None
        bound = _bound(facts)
        full = bound is Bound.COMPUTE or facts.bound_share(BoundBy.SEQS) >= HELD
        # weights are read once however many tokens are verified with them
        if not full or bound is Bound.MEMORY or _waste_share(facts) < self.WASTED:
            return None
        return _cost(facts)

    def sentence(self, facts: Facts) -> str:
        why = "steps are compute-bound"
        if _bound(facts) is not Bound.COMPUTE:
            limit = f"max_num_seqs {facts.limit_text('max_num_seqs')}".rstrip()
            why = f"the batch is at {limit}"
        return (
            f"Drafts cost more than they bring: {why}, and "
            f"{_waste_share(facts):.0%} of the tokens computed are thrown away"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = (
            f"{_wasted(facts):,} of {_drafted(facts):,} drafted tokens thrown away in "
            f"a minute; {facts.running or 0:,} requests run"
        )
        return (Evidence(text=text, page="steps", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            _shorter(facts),
            Knob(
                text="Turn speculative decoding off where the batch is always full",
                flag="--speculative-config",
                present=_present(facts),
                expected="tokens/s rise; a lone request gets slower",
                effort=(Effort.RESTART,),
            ),
        )


WORTH = 0.2
"""Share of the drafts that must be accepted up to a position to draft that far."""


def _shorter(facts: Facts) -> Knob:
    """Return the advice to draft fewer tokens, by where acceptance falls."""
    shares = _by_position(facts)
    far = next((n for n, share in enumerate(shares) if share < WORTH), None)
    if far is None:
        text = "Draft fewer tokens, or none"
    elif far:
        text = (
            f"Draft {far} {'tokens' if far > 1 else 'token'}: further on fewer than "
            f"{WORTH:.0%} of the drafts are accepted"
        )
    else:
        text = f"Turn it off: not even the first token is accepted in {WORTH:.0%}"
    return Knob(
        text=text,
        flag="--speculative-config",
        present=_present(facts),
        expected="fewer tokens are verified in vain",
        effort=(Effort.RESTART,),
    )


def _present(facts: Facts) -> str | None:
    """Return the method, and how many tokens are drafted; None where not told."""
    method = setting_text(facts.setting("speculative_method"))
    tokens = facts.setting("num_speculative_tokens")
    return f"{method}, {tokens} tokens" if method and tokens else method


def _drafted(facts: Facts) -> int:
    return facts.drafts.sums.get("drafted_tokens", 0)


def _wasted(facts: Facts) -> int:
    return _drafted(facts) - facts.drafts.sums.get("accepted_tokens", 0)


def _waste_share(facts: Facts) -> float:
    """Return the share of what steps with drafts compute that is thrown away, 0-1."""
    return _wasted(facts) / max(facts.drafts.sums.get("computed_tokens", 0), 1)


def _by_position(facts: Facts) -> list[float]:
    """Return the share of drafts accepted up to each position that is drafted."""
    sums, drafts = facts.drafts.sums, facts.drafts.sums.get("drafts", 0)
    counts = [sums[name] for name in POSITIONS if name in sums]
    reached = max((n for n, count in enumerate(counts, 1) if count), default=0)
    tokens = facts.setting("num_speculative_tokens")
    most = max(reached, tokens if isinstance(tokens, int) else 0)
    return [count / drafts for count in counts[:most]] if drafts else []


def _bound(facts: Facts) -> Bound | None:
    decode = facts.limits.decode if facts.limits else None
    return decode.bound if decode is not None else None


def _cost(facts: Facts) -> FindingCost:
    """Return what thrown-away tokens cost of the engine's time.

    By the share of tokens; where the floor says that memory binds, by what they take
    of the FLOP/s.
    """
    steps = min(facts.drafts.rows / max(facts.steps_minute.rows, 1), 1.0)
    share = _waste_share(facts) * steps * facts.busy_share()
    decode = facts.limits.decode if facts.limits else None
    if decode is not None and decode.bound is Bound.MEMORY and decode.mfu is not None:
        share *= decode.mfu
        return FindingCost(share, f"{share:.0%} of the compute; memory binds")
    return FindingCost(share, f"{share:.0%} of what the engine computes, thrown away")
