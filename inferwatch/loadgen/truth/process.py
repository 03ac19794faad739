"""The truth server as a child process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from collectors.http_client import http_client

READY_S = 20.0
LOG_TIMEOUT_S = 60.0


@asynccontextmanager
async def truth_server() -> AsyncIterator[str]:
    """Its URL, for as long as the context lasts."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "inferwatch.loadgen.truth.server"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; we end it
    )
    try:
        if process.stdout is None:
            raise RuntimeError("a pipe was asked for")
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        host, port = json.loads(line)
        yield f"http://{host}:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def truth_log(url: str, run_id: str) -> dict[str, dict[str, Any]]:
    """What it knows of a run's requests, by their ids."""
    async with http_client(url, timeout_s=LOG_TIMEOUT_S, proxies=False) as client:
        answers = (await client.get("/log")).json()
    named = ((str(each["request_id"]), each) for each in answers)
    return {name: each for name, each in named if name.startswith(f"{run_id}-")}
