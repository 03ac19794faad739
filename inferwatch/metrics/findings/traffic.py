"""Diagnoses of traffic: aborts, errors, the load generator and lost readings."""

from inferwatch.formatting import counted, duration_text
from inferwatch.metrics.findings.diagnosis import (
    Diagnosis,
    FindingCost,
    Lasting,
    ago_ns,
)
from inferwatch.metrics.findings.facts import Facts, now, read_log
from inferwatch.metrics.findings.finding import Evidence, Knob, Subject
from inferwatch.metrics.requests.refusals import refused_failures
from inferwatch.metrics.requests.sampling import many_cut
from inferwatch.metrics.steps.health import Health


class EngineLost(Diagnosis):
    """The engine is lost."""

    NAME, TITLE = "lost", "engine lost"
    SUBJECT = Subject.ENGINE
    MANY = "are lost"
    LASTING = Lasting(least_s=0, of_s=5, gone_s=0)

    def holds(self, facts: Facts) -> FindingCost | None:
        verdict = facts.verdict
        if verdict is None or verdict.health is not Health.LOST:
            return None
        return FindingCost(1.0, "all of the throughput")

    def sentence(self, facts: Facts) -> str:
        return facts.verdict.headline if facts.verdict else facts.lost_why

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        since_ns = facts.verdict.since_ns if facts.verdict else None
        text = "it was lost then; its log may say why"
        return (Evidence(text=text, page="overview", t_ns=since_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (read_log(facts, "the reason is found; then start it anew", end=True),)


class RestartLoop(Diagnosis):
    """The engine is lost repeatedly."""

    NAME, TITLE = "restart_loop", "engine keeps dying"
    SUBJECT = Subject.ENGINE
    MANY = "are lost again and again"
    LASTING = Lasting(least_s=0, of_s=5, gone_s=30)
    LEAST = 2

    def holds(self, facts: Facts) -> FindingCost | None:
        n = len(facts.lost_ns)
        if n < self.LEAST:
            return None
        return FindingCost(1.0, f"every request that runs when it dies, {n:,} times")

    def sentence(self, facts: Facts) -> str:
        n = len(facts.lost_ns)
        return f"Lost {n:,} times in ten minutes, last: {facts.lost_why}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(text="lost", page="overview", t_ns=t_ns)
            for t_ns in facts.lost_ns[-3:]
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        expected = "the reason is found: out of memory, a driver error, a signal"
        return (read_log(facts, expected, end=True),)


class CutOff(Diagnosis):
    """Many answers end at max_tokens, while others end by themselves."""

    NAME, TITLE = "cut_off", "answers cut off"
    SUBJECT = Subject.TRAFFIC
    MANY = "have many answers cut off at max_tokens"

    def holds(self, facts: Facts) -> FindingCost | None:
        sums, share = facts.outcomes.sums, self._share(facts)
        if share is None or not many_cut(sums.get("cut", 0), sums["finished"]):
            return None
        return FindingCost(share, f"{share:.0%} of the answers")

    def sentence(self, facts: Facts) -> str:
        n = facts.outcomes.sums["cut"]
        return (
            f"{counted(n, 'answer')} of the last minute ({self._share(facts) or 0:.0%})"
            " ended at max_tokens or the end of the context: cut off"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        n = facts.outcomes.sums["finished"] - facts.outcomes.sums["cut"]
        text = f"{n:,} ended by themselves in the same time"
        return (Evidence(text=text, page="requests", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Raise max_tokens, or ask for shorter answers: `inferwatch why "
                "--sampling` tells which settings cut",
                "whole answers; vLLM gives KV blocks as tokens come, so a higher "
                "limit alone reserves none",
            ),
        )

    def _share(self, facts: Facts) -> float | None:
        sums = facts.outcomes.sums
        finished = sums.get("finished", 0)
        return sums.get("cut", 0) / finished if finished else None


class Aborts(Diagnosis):
    """Clients abort requests before these finish."""

    NAME, TITLE = "aborts", "clients give up"
    SUBJECT = Subject.TRAFFIC
    MANY = "have many requests aborted"
    LEAST = 3
    SHARE = 0.15

    def holds(self, facts: Facts) -> FindingCost | None:
        share = self._share(facts)
        if share is None or share < self.SHARE:
            return None
        if facts.outcomes.sums["aborted"] < self.LEAST:
            return None
        return FindingCost(share, f"{share:.0%} of the requests, computed for nobody")

    def sentence(self, facts: Facts) -> str:
        n = facts.outcomes.sums["aborted"]
        return (
            f"{counted(n, 'request')} of the last minute "
            f"({self._share(facts) or 0:.0%}) "
            "were aborted by their clients"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        n = facts.outcomes.sums["finished"]
        text = f"{n:,} finished in the same time"
        return (Evidence(text=text, page="requests", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Look at the clients' timeouts and retries: what is sent again is "
                "computed twice",
                "fewer aborts; tokens/s go to answers",
            ),
        )

    def _share(self, facts: Facts) -> float | None:
        sums = facts.outcomes.sums
        ended = sum(sums.get(each, 0) for each in ("finished", "aborted", "failed"))
        return sums.get("aborted", 0) / ended if ended else None


class Failures(Diagnosis):
    """Requests fail with errors."""

    NAME, TITLE = "failures", "requests fail"
    SUBJECT = Subject.ENGINE
    MANY = "fail requests"
    LEAST = 3
    SHARE = 0.05

    def holds(self, facts: Facts) -> FindingCost | None:
        sums = facts.outcomes.sums
        failed = sums.get("failed", 0) - self._refused(facts)
        ended = failed + sums.get("finished", 0)
        if failed < self.LEAST or failed < self.SHARE * ended:
            return None
        return FindingCost(failed / ended, f"{failed / ended:.0%} of the requests")

    def sentence(self, facts: Facts) -> str:
        sums = facts.outcomes.sums
        refused = self._refused(facts)
        failed = sums["failed"] - refused
        unlisted = sums.get("failed_unlisted", 0) - refused
        said = f"{counted(failed, 'request')} of the last minute ended in an error"
        if unlisted:
            said += (
                f"; Requests lists {failed - unlisted:,} of them; the other "
                f"{unlisted:,} only the load generator saw"
            )
        return said

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = f"{facts.outcomes.sums['finished']:,} finished in the same time"
        return (Evidence(text=text, page="requests", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (read_log(facts, "the errors and their reason are found"),)

    def _refused(self, facts: Facts) -> int:
        return refused_failures(facts.outcomes.sums, facts.refused)


class ClientBound(Diagnosis):
    """The load generator cannot keep up, so its numbers are not the server's."""

    NAME, TITLE = "client_bound", "load generator too slow"
    SUBJECT = Subject.MEASURING
    MANY = "are measured by a client that is too slow"
    LASTING = Lasting(least_s=20, of_s=25)
    """Long, because the load generator's own verdict lasts ten seconds after a slow
    one.
    """
    PRICE = 0.5

    def holds(self, facts: Facts) -> FindingCost | None:
        if facts.around.client_why is None:
            return None
        # Where other processes keep the host busy, they are the cause.
        share = FOLLOWS if _host_is_full(facts) else self.PRICE
        return FindingCost(share, "what the clients measure: it is not the server's")

    def sentence(self, facts: Facts) -> str:
        why = facts.around.client_why or ""
        return f"{why[:1].upper()}{why[1:]}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = "what it measured of itself, run by run"
        return (Evidence(text=text, page="load", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Run the load from another host, or ask for a lower rate",
                "client and server agree again",
            ),
        )


FOLLOWS = 0.2


def _host_is_full(facts: Facts) -> bool:
    ours = next((each for each in facts.around.hosts if not each.source), None)
    busy = ours.busy if ours is not None else None
    return bool(ours and ours.cores and busy and busy >= 0.95 * ours.cores)


class EngineWarmUp(Diagnosis):
    """Slow first steps after a start are part of the window."""

    NAME, TITLE = "warm_up", "warm-up in the window"
    SUBJECT = Subject.MEASURING
    MANY = "have their warm-up in the window"
    LASTING = Lasting(least_s=3, of_s=5, gone_s=5)
    WITHIN_S = 60
    FROM_S = 15
    """Seconds after a start before which the usual step is not known."""
    TIMES = 10
    """Ratio of the slowest step to the usual one."""
    TIMES_LATELY = 3
    SHARE = 0.05

    def holds(self, facts: Facts) -> FindingCost | None:
        steps = facts.slow_start
        if not self.FROM_S <= facts.up_s <= self.WITHIN_S or steps is None:
            return None
        worst_s, usual_s = steps.max, steps.p50
        if not worst_s or not usual_s or worst_s < self.TIMES * usual_s:
            return None
        if worst_s < self.TIMES_LATELY * (facts.longest_s or 0.0):
            return None
        share = worst_s / facts.minute_s
        if share < self.SHARE:
            return None
        return FindingCost(share / 10, f"{share:.0%} of what is averaged is warm-up")

    def sentence(self, facts: Facts) -> str:
        return (
            f"The first steps after the start took {self._worst_s(facts):.1f} s: "
            "numbers over a minute or more are of the warm-up, too"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = "no step ran lately"
        if facts.step_s is not None:
            text = f"steps now take {duration_text(facts.step_s)}"
        t_ns = ago_ns(facts, facts.up_s)
        return (Evidence(text=text, page="steps", t_ns=t_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Look at the last ten seconds (w), or leave the first minute out",
                "numbers of the steady state",
            ),
        )

    def _worst_s(self, facts: Facts) -> float:
        return (facts.slow_start.max if facts.slow_start else None) or 0.0


class SloMissed(Diagnosis):
    """Objectives are missed, and no other finding explains it."""

    NAME, TITLE = "slo_missed", "objectives missed"
    SUBJECT = Subject.TRAFFIC
    MANY = "miss their objectives"
    FALLBACK = True

    def holds(self, facts: Facts) -> FindingCost | None:
        slo = facts.around.slo
        if slo is None or slo.met is not False or slo.share is None:
            return None
        return FindingCost(1 - slo.share, f"{1 - slo.share:.0%} of the requests")

    def sentence(self, facts: Facts) -> str:
        slo = facts.around.slo
        if slo is None:
            return ""
        slow = facts.slow.sentence if facts.slow is not None else ""
        why = slow or "what keeps them from it is not known"
        return f"{slo.good:,} of {slo.judged:,} requests held {slo.slo}; {why}"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        missed = facts.around.slo.missed if facts.around.slo else None
        named = ", ".join(f"{metric} {n:,}" for metric, n in (missed or {}).items())
        text = f"missed: {named}" if named else "requests judged"
        return (Evidence(text=text, page="overview", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return ()


class Dropped(Diagnosis):
    """Readings were lost, so numbers are incomplete."""

    NAME, TITLE = "dropped", "readings dropped"
    SUBJECT = Subject.MEASURING
    MANY = "lose readings"
    LASTING = Lasting(least_s=0, of_s=5, gone_s=60)

    def holds(self, facts: Facts) -> FindingCost | None:
        if not facts.around.dropped:
            return None
        return FindingCost(
            0.01, "nothing of the engine's; numbers are of less than there was"
        )

    def sentence(self, facts: Facts) -> str:
        return (
            f"{counted(facts.around.dropped, 'reading')} of the last minute never came"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = "dropped where they were made, before they could wait"
        return (Evidence(text=text, page="overview", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Leave inferwatch a core, or record without a screen", "all come again"
            ),
        )


class Late(Diagnosis):
    """Our own process was kept from running, so readings wait to be read."""

    NAME, TITLE = "late", "inferwatch late"
    SUBJECT = Subject.MEASURING
    MANY = "are read late"
    LASTING = Lasting(least_s=0, of_s=5, gone_s=10)
    LEAST_S = 2

    def holds(self, facts: Facts) -> FindingCost | None:
        if facts.around.late_s <= self.LEAST_S:
            return None
        return FindingCost(0.01, "nothing of the engine's; it is shown as it was")

    def sentence(self, facts: Facts) -> str:
        return (
            f"inferwatch was late by {facts.around.late_s:.1f} s: what came meanwhile "
            "is read now"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = "the tick that it judges by came so late"
        return (Evidence(text=text, page="hardware", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        text = "Leave inferwatch a core, or record without a screen"
        return (now(text, "readings are read at once"),)
