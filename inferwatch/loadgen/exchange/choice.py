"""Which transport carries a plan: the finest that can."""

import sys
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from collectors.http_client import goes_direct
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind


def chosen(plan: LoadPlan) -> TransportKind:
    """As the plan says; left to us, raw unless something is in its way."""
    if plan.transport is not TransportKind.AUTO:
        return plan.transport
    linux = sys.platform == "linux"  # epoll
    raw = linux and urlsplit(plan.url).scheme == "http" and not plan.http2
    return TransportKind.RAW if raw and not _proxied(plan) else TransportKind.HTTPX


def _proxied(plan: LoadPlan) -> bool:
    if goes_direct(plan.url, plan.uds):
        return False
    where = urlsplit(plan.url)
    proxies = getproxies()
    behind = where.scheme in proxies or "all" in proxies
    return behind and not proxy_bypass(where.netloc)
