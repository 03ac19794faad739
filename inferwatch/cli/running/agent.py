"""Publishes what the hardware of this host does, until told to stop."""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from collectors.contract.liveness import listener
from collectors.contract.runtime_dir import SOCKET_PATH_LIMIT, agent_path, probe_sockets
from collectors.contract.wire import TCP
from collectors.hardware.gpu_source import GpuOptions
from collectors.probe.hello import FRONTED
from collectors.probe.keys import KeyFileError, ProbeKeys
from embedded_engine.publishing.relay import Relay, refused
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.say import say, say_json, say_no_more, say_now
from inferwatch.errors import SourceError, UsageError
from inferwatch.formatting import counted
from inferwatch.live.attached.agent import Agent
from inferwatch.visible import visible

LONGEST_NAME = 64
GPUS_S = 3.0
"""How long to wait for the driver before the first line is printed."""
BOUND_S = 2.0
"""How long to wait for the TCP port: while another process has it, the relay
retries."""
LIVE_EVERY_S = 1.0
TELL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of ``inferwatch agent``, as the user gave them."""

    listen: str | None = None
    key_file: Path | None = None
    name: str | None = None
    probes: bool = False
    as_json: bool = False
    gpus: GpuOptions = field(default_factory=GpuOptions)

    @property
    def address(self) -> str | None:
        """The TCP address for viewers; None if only the Unix socket is used."""
        tcp = self.listen is not None and self.listen.startswith(TCP)
        return self.listen if tcp else None

    @property
    def path(self) -> Path:
        """The path of the Unix socket, on which the agent always listens."""
        if self.listen is None or self.address is not None:
            return agent_path()
        return Path(self.listen.removeprefix("unix:")).expanduser().absolute()


def run_agent(options: AgentOptions) -> int:
    """Publish this host's readings until told to stop; return the exit status.

    Raises:
        UsageError: the address or key file cannot be used, or anybody could connect.
        SourceError: nothing more can be published.
    """
    _check(options)
    return asyncio.run(_publish(options))


def _check(options: AgentOptions) -> None:
    """Refuse options that would fail later, or that would let anybody connect."""
    address, key_file = options.address, options.key_file
    if address is None and (key_file or options.probes):
        raise UsageError("--key-file and --probe go with --listen tcp://host:port")
    if address is not None and (why := refused(address, key_file)):
        raise UsageError(f"--listen: {why}; --key-file names the file")
    if key_file is not None:
        try:
            ProbeKeys.read(key_file)
        except KeyFileError as error:
            raise UsageError(str(error)) from error
    _check_path(options.path)


def _check_path(path: Path) -> None:
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise UsageError(f"{path} is too long for a socket")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}")
    if path.exists() and not path.is_socket():
        raise UsageError(f"{path} is there already, and is not a socket")
    if (pid := listener(path)) is not None:
        raise UsageError(
            f"an agent listens at {path} already (pid {pid}): stop it, or let this one "
            "listen at another --listen PATH"
        )


async def _publish(options: AgentOptions) -> int:
    name = (options.name or socket.gethostname())[:LONGEST_NAME]
    agent = Agent(name, options.path, _report, options.gpus)
    relay = None if options.address is None else _relay(options, options.address)
    try:
        agent.open()
    except (zmq.ZMQError, OSError) as error:
        raise SourceError(f"the agent cannot listen: {error}") from error
    with interrupts() as stop:
        work = [agent.run(), _show(agent, options, relay), stop.wait()]
        tasks = [asyncio.create_task(each) for each in (*work, agent.broken.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            if relay is not None:
                await asyncio.to_thread(relay.stop)
    for failure in ended:
        if isinstance(failure, Exception):
            raise failure
    if agent.broken.is_set():
        raise SourceError("the agent has ended")
    return 0


def _relay(options: AgentOptions, address: str) -> Relay:
    """Return a relay over TCP for viewers of the agent and, if asked, of the probes."""

    def sockets() -> list[Path]:
        probes = [each.path for each in probe_sockets()] if options.probes else []
        return [options.path, *probes]

    return Relay(
        address,
        sockets,
        _report,
        key_file=options.key_file,
        who="the agent",
        prefix=FRONTED,
    )


async def _show(agent: Agent, options: AgentOptions, relay: Relay | None) -> None:
    """Print where the agent listens, then its progress until cancelled."""
    places = [str(options.path)]
    if relay is not None:
        relay.start()
        if await asyncio.to_thread(relay.listening.wait, BOUND_S):
            places.append(relay.address)
    with suppress(TimeoutError):
        async with asyncio.timeout(GPUS_S):
            await agent.met.wait()
    if options.as_json:
        facts = {"agent": agent.name, "pid": os.getpid(), "listens": places}
        say_json({**facts, "gpus": sorted(agent.gpus), "no_gpu": agent.no_gpu})
    where = " and ".join(map(visible, places))
    say(f"inferwatch: the agent of {visible(agent.name)} listens at {where}", err=True)
    live_line = sys.stderr.isatty()
    try:
        while True:
            text = _progress(agent)
            if live_line:
                say_now(text)
            else:
                say(text, err=True)
            await asyncio.sleep(LIVE_EVERY_S if live_line else TELL_EVERY_S)
    finally:
        if live_line:
            say_no_more()


def _progress(agent: Agent) -> str:
    gpus = counted(len(agent.gpus), "GPU") if agent.gpus else agent.no_gpu or "no GPU"
    engines = counted(len(agent.processes), "process", "processes")
    viewers = "somebody watches" if agent.watched else "nobody watches"
    readings = counted(agent.reading_count, "reading")
    return f"{visible(gpus)} · {engines} of engines · {readings} · {viewers}"


def _report(text: str) -> None:
    with suppress(OSError):  # stderr is closed
        say(f"inferwatch: {visible(text)}", err=True)
