"""Lines on what surrounds the engine: API servers, what they do, and the host."""

from collections.abc import Mapping
from typing import Any

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
        if any(map(_asks, setup.plans)):
            advised = Advised(
                text="ask for log-probs only where they are read",
                risk="clients that read them miss them",
            )
            return change("requests of our load ask for them", advised)
        return unknown("no reading tells whether requests ask for them")


def _asks(plan: Mapping[str, Any]) -> bool:
    """Return whether a plan's requests ask for log-probs, be it for none but theirs."""
    body = plan.get("extra_body")
    asked = body if isinstance(body, dict) else {}
    values = (asked.get(name) for name in ("logprobs", "prompt_logprobs"))
    return any(each is not None and each is not False for each in values)


class HostCores(ReviewLine):
    """Cores of the host: quota and neighbours."""

    NAME = "CPU cores and quota"

    def judge(self, setup: Setup) -> Judgement:
        held = setup.held("cpu_quota") or setup.held("host_busy")
        if held is not None and held.knobs:
            return change(held.sentence, by_knob(held.knobs[0], "others get less"))
        hosts = [each for each in setup.now.hosts if each.busy is not None]
        if not hosts:
            return unknown("no host of the engine is watched")
        host = hosts[0]
        of = "" if host.cores is None else f"of {host.cores:,} "
        told = any(each.throttled is not None for each in host.processes)
        quota = "no quota holds the engine back" if told else "no quota is told"
        return good(f"{host.busy:.1f} {of}cores are busy; {quota}")
