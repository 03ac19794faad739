"""Lines on what surrounds the engine: API servers, what they do, and the host."""

from inferwatch.formatting import format_share
from inferwatch.metrics.causes.cause import Cause
from inferwatch.studies.review.line import (
    Advised,
    Judgement,
    ReviewLine,
    by_knob,
    change,
    good,
    unknown,
)
from inferwatch.studies.review.setup import Setup


class ApiServers(ReviewLine):
    """Processes that tokenise and send, against what they take of a TTFT."""

    NAME, SETTING = "API servers", "api_server_count"

    def judge(self, setup: Setup) -> Judgement:
        held, count = setup.held("front_end"), setup.number(self.SETTING)
        slowest = setup.now.slowest
        if held is None:
            if slowest is None:
                return unknown("what they take of a TTFT is not told")
            shares = {each.cause: each.share for each in slowest.groups}
            share = shares.get(Cause.API, 0.0) + shares.get(Cause.SEND, 0.0)
            told = format_share(share).strip()
            return good(f"they take {told} of the TTFT of the slowest requests")
        if setup.held("cpu_quota", "host_busy") is not None:
            return good(f"{held.sentence}, but the host has no core left: see there")
        more = "" if count is None else f" {2 * int(count)}"
        advised = Advised(
            text="start more API server processes",
            flag=f"--api-server-count{more}",
            risk="cores and memory of the host",
        )
        return change(held.sentence, advised)


class LogProbs(ReviewLine):
    """Log-probabilities that requests ask for."""

    NAME = "log-probs"

    def judge(self, setup: Setup) -> Judgement:
        bodies = [plan.get("extra_body") for plan in setup.plans]
        if any("logprobs" in each for each in bodies if isinstance(each, dict)):
            advised = Advised(
                text="ask for log-probs only where they are read",
                risk="clients that read them miss them",
            )
            return change("requests of our load ask for them", advised)
        return unknown("no reading tells whether requests ask for them")


class RequestLogging(ReviewLine):
    """Each request written to the server's log."""

    NAME, SETTING = "logging of requests", "enable_log_requests"

    def judge(self, setup: Setup) -> Judgement:
        del setup
        return unknown(
            "not told: without --enable-log-requests, vLLM does not log them"
        )


class HostCores(ReviewLine):
    """Cores of the host: quota, neighbours, NUMA."""

    NAME = "CPU quota and NUMA"

    def judge(self, setup: Setup) -> Judgement:
        held = setup.held("cpu_quota") or setup.held("host_busy")
        if held is not None and held.knobs:
            return change(held.sentence, by_knob(held.knobs[0], "others get less"))
        hosts = [each for each in setup.now.hosts if each.busy is not None]
        if not hosts:
            return unknown("no host of the engine is watched")
        return good(
            f"{hosts[0].busy or 0:.1f} of {hosts[0].cores or 0:,} cores are busy, and "
            "no quota holds the engine back; NUMA nodes are not told"
        )
