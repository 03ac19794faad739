"""Serialises requests in advance, so that each is sent in one write."""

from typing import Any
from urllib.parse import urlsplit

import msgspec

from inferwatch import __version__
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.plan.plan import Api, LoadPlan

PATHS = {Api.COMPLETIONS: "/v1/completions", Api.CHAT: "/v1/chat/completions"}


def body(plan: LoadPlan, call: Call) -> bytes:
    fields: dict[str, Any] = {
        "model": plan.model,
        **_prompt(plan, call),
        "max_tokens": call.prompt.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.temperature is not None:
        fields["temperature"] = plan.temperature
    if call.prompt.later and call.prompt.text is None:
        fields["return_token_ids"] = True  # the next turn repeats them
    if call.prompt.priority is not None:
        fields["priority"] = call.prompt.priority
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    return msgspec.json.encode(fields | plan.extra_body)


def headers(plan: LoadPlan, call: Call) -> dict[str, str]:
    """The headers of a request; those in the plan override ours."""
    return {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": f"inferwatch/{__version__}",
        "X-Request-Id": call.external_id,
        **plan.headers,
    }


def url(plan: LoadPlan) -> str:
    return plan.url.rstrip("/") + PATHS[plan.endpoint]


def plain_http(plan: LoadPlan, call: Call) -> bytes:
    where = urlsplit(url(plan))
    content = body(plan, call)
    lines = {"Host": where.netloc.rpartition("@")[2], **headers(plan, call)}
    head = [f"POST {where.path} HTTP/1.1", f"Content-Length: {len(content)}"]
    head += [f"{name}: {value}" for name, value in lines.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + content


def _prompt(plan: LoadPlan, call: Call) -> dict[str, Any]:
    prompt = call.prompt
    if plan.endpoint is Api.CHAT:
        return {"messages": prompt.messages}
    return {"prompt": prompt.token_ids if prompt.text is None else prompt.text}
