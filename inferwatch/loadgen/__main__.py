"""The load generator's process: ``python -m inferwatch.loadgen``.

Reads a plan as one line of JSON and pushes readings to a socket. Further lines on
standard input are commands; the end of input means nothing. SIGTERM stops the run
within two seconds, and the process ends with its parent.
"""

import argparse
import asyncio
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import msgspec

from inferwatch.loadgen.exchange.call import UnreachableError
from inferwatch.loadgen.exchange.transport import transport_for
from inferwatch.loadgen.plan.commands import read_command
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.prompts.dataset import DatasetError
from inferwatch.loadgen.sending.pipes import CommandReader, Outbox
from inferwatch.loadgen.sending.run import LoadRunner
from inferwatch.loadgen.sending.warmup import NoOutputError

PARENT_POLL_S = 0.5
GARBAGE_S = 5.0


def main() -> int:
    """Run the plan; 0 when it ended or was stopped, 3 when no token came back."""
    arguments = _arguments()
    commands = CommandReader(sys.stdin.fileno())
    text = arguments.plan.read_bytes() if arguments.plan else commands.line()
    plan = msgspec.json.decode(text, type=LoadPlan)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection at a bad moment would delay a timestamp
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(plan, commands, arguments.socket, arguments.parent))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m inferwatch.loadgen")
    parser.add_argument("socket", help="address of the PULL socket, ipc://PATH")
    parser.add_argument(
        "--plan", type=Path, help="JSON file (default: a line of stdin)"
    )
    parser.add_argument("--parent", type=int, help="end when this is not our parent")
    return parser.parse_args()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Event loop of uvloop, which halves the CPU time per token; None without it."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop  # noqa: PLC0415 - optional

    return uvloop.new_event_loop  # type: ignore[no-any-return]


async def _serve(
    plan: LoadPlan, commands: CommandReader, address: str, parent: int | None
) -> int:
    outbox = Outbox(plan.run_id, address)
    try:
        async with aclosing(transport_for(plan)) as transport:
            run = LoadRunner(plan, transport, outbox)
            commands.listen(lambda line: _obey(run, line))
            return await _run(run, outbox, parent)
    finally:
        outbox.close()


async def _run(run: LoadRunner, outbox: Outbox, parent: int | None) -> int:
    task = asyncio.create_task(run.run())
    helpers = [
        asyncio.create_task(helper)
        for helper in (outbox.run(), _collect_garbage(), _watch_parent(parent))
    ]
    _stop_on_signals(task)
    try:
        await task
    except (DatasetError, NoOutputError, UnreachableError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a process of its own
        return 1 if isinstance(error, DatasetError) else 3
    except asyncio.CancelledError:
        return 0
    finally:
        for helper in helpers:
            helper.cancel()
    return 0


def _obey(run: LoadRunner, line: bytes) -> None:
    """Apply a command to the run; errors are written to the log."""
    try:
        why = run.change(read_command(line))
    except msgspec.MsgspecError as error:
        why = f"no command: {error}"
    if why is not None:
        print(f"the plan was refused: {why}", file=sys.stderr)  # noqa: T201 - as above


def _stop_on_signals(task: asyncio.Task[None]) -> None:
    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _collect_garbage() -> None:
    while True:
        await asyncio.sleep(GARBAGE_S)
        gc.collect()


async def _watch_parent(parent: int | None) -> None:
    while parent is None or os.getppid() == parent:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(PARENT_POLL_S)
    os._exit(1)  # nobody reads what is left, and the kernel closes the connections


if __name__ == "__main__":
    sys.exit(main())
