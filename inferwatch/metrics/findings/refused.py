"""The diagnosis of refused requests: for what, and what to do about each reason."""

from collections import Counter
from dataclasses import dataclass

from collectors.contract.readings import RefusalReason, Vantage
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost
from inferwatch.metrics.findings.facts import Facts, now, read_log
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.requests.refusals import (
    LEAST_REFUSED,
    RefusedGroup,
    of_requests,
    refused_count,
)

SENTENCES = {
    RefusalReason.TOO_LONG: "max_model_len {limit} is too short for {asked}",
    RefusalReason.INVALID: "they ask for what cannot be, an {name}",
    RefusalReason.UNKNOWN_MODEL: "they name a model that is not served",
    RefusalReason.UNAUTHORISED: "they do not have the server's API key",
    RefusalReason.QUEUE_FULL: "the queue is as full as it may be",
    RefusalReason.ENGINE_DEAD: "the engine behind the API server is dead",
    RefusalReason.CANCELLED: "their clients left before the engine had them",
    RefusalReason.OTHER: "answered with {name}",
}
"""What is wrong, by reason, as the end of a sentence."""
ADVICE = {
    RefusalReason.INVALID: (
        "Mend what clients send: the answer they get says what is wrong",
        "they are answered",
    ),
    RefusalReason.UNKNOWN_MODEL: (
        "Let clients ask for a model that is served, or add it: --served-model-name",
        "they are answered",
    ),
    RefusalReason.UNAUTHORISED: (
        "Give clients the key that --api-key names",
        "they are answered",
    ),
    RefusalReason.ENGINE_DEAD: (
        "Read the end of its log (l), then start it anew",
        "it serves",
    ),
    RefusalReason.CANCELLED: ("Look at the clients' timeouts", "fewer give up"),
}
"""What to do without a restart, by reason, and the effect to expect."""
PROBE = Knob(
    text="Start it with its probe, INFERWATCH_PROBE=1",
    expected="the reason of each is told",
    effort=(Effort.RESTART,),
)
"""For requests of which only the status is counted."""


class RefusedRequests(Diagnosis):
    """The API server refuses requests."""

    NAME, TITLE = "refused", "requests are refused"
    SUBJECT = Subject.TRAFFIC
    MANY = "refuse requests"
    SHARE = 0.05

    def subject(self, facts: Facts) -> Subject:
        """Return the engine where most of them are answered with 5xx."""
        ours = sum(each.count for each in of_requests(facts.refused) if each.by_server)
        mostly = 2 * ours > refused_count(facts.refused)
        return Subject.ENGINE if mostly else Subject.TRAFFIC

    def holds(self, facts: Facts) -> FindingCost | None:
        refused, share = refused_count(facts.refused), _share(facts)
        if refused < LEAST_REFUSED or share < self.SHARE:
            return None
        return FindingCost(share, f"{share:.0%} of the requests")

    def sentence(self, facts: Facts) -> str:
        reasons = _by_reason(facts)
        if not reasons:
            return ""
        first, *others = reasons
        said = f"{_share(facts):.0%} of requests are refused: {first.sentence}"
        if others:
            rest = ", ".join(f"{each.count:,} {each.name}" for each in others)
            said += f" ({first.count:,} requests); also {rest}"
        return said

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        counts = Counter[str]()
        for each in of_requests(facts.refused):
            counts[each.place] += each.count
        listed = ", ".join(f"{count:,} × {place}" for place, count in counts.items())
        text = f"{listed} in the last minute"
        if any(_may_have_failed(each) for each in facts.refused):
            text += "; 5xx may include requests that failed in the engine"
        return (Evidence(text=text, page="requests", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        knobs = [each.knob(facts) for each in _by_reason(facts)]
        if any(each.reason is None for each in facts.refused):
            knobs.append(PROBE)
        return tuple(sorted(knobs, key=lambda each: Effort.NOW not in each.effort))


@dataclass(frozen=True, slots=True)
class _Refused:
    """Refused requests of the last minute for one reason."""

    reason: RefusalReason
    groups: tuple[RefusedGroup, ...]
    max_model_len: int | None

    @property
    def count(self) -> int:
        return sum(each.count for each in self.groups)

    @property
    def name(self) -> str:
        """The reason, with the parameters or places where these are known."""
        if self.reason is RefusalReason.OTHER:
            return ", ".join(sorted({each.place for each in self.groups}))
        names = dict.fromkeys(each.parameter for each in self.groups if each.parameter)
        return f"{self.reason} ({', '.join(names)})" if names else f"{self.reason}"

    @property
    def sentence(self) -> str:
        known = [each.allowed_tokens for each in self.groups if each.allowed_tokens]
        limit = max(known, default=self.max_model_len)
        most = (
            f"prompts up to {self._asked:,} tokens" if self._asked else "their length"
        )
        text = "of the engine" if limit is None else f"{limit:,}"
        return SENTENCES[self.reason].format(limit=text, asked=most, name=self.name)

    @property
    def _asked(self) -> int | None:
        """The most tokens that one asked for; None where vLLM did not count them."""
        known = [each.asked_tokens for each in self.groups if each.asked_tokens]
        return max(known, default=None)

    def knob(self, facts: Facts) -> Knob:
        if self.reason is RefusalReason.TOO_LONG:
            most = "" if self._asked is None else f" above {self._asked:,}"
            return facts.flag(
                "max_model_len",
                f"Raise it{most}, if the model allows it, or send shorter prompts",
                "fewer are too long; each may take more of the KV cache",
                Effort.RESTART,
                Effort.MEMORY,
            )
        if self.reason is RefusalReason.QUEUE_FULL:
            return facts.flag(
                "max_num_queued_reqs",
                "Raise it or --max-num-queued-tokens, or add a server",
                "fewer are turned away; those that wait wait longer",
            )
        if self.reason is RefusalReason.OTHER:
            return read_log(facts, "the reason is found")
        return now(*ADVICE[self.reason])


def _may_have_failed(group: RefusedGroup) -> bool:
    """Return whether a server counts them only by a status that failures have, too."""
    counted = group.vantage is Vantage.SCRAPE and group.status is not None
    return counted and group.by_server


def _share(facts: Facts) -> float:
    """Return the share of the last minute's requests that was refused, 0-1."""
    refused = refused_count(facts.refused)
    others = facts.outcomes.sums.get("arrived", 0)
    if facts.counted is not None:
        others += facts.counted.ended
    return refused / max(refused + others, 1)


def _by_reason(facts: Facts) -> list[_Refused]:
    """Return the refused requests by reason, the most frequent first."""
    groups: dict[RefusalReason, list[RefusedGroup]] = {}
    for each in of_requests(facts.refused):
        groups.setdefault(each.reason or RefusalReason.OTHER, []).append(each)
    length = facts.setting("max_model_len")
    longest = length if isinstance(length, int) else None
    made = (_Refused(reason, tuple(each), longest) for reason, each in groups.items())
    return sorted(made, key=lambda each: -each.count)
