"""Commands of other profilers for an engine's processes, to copy.

Where vLLM's own profiler cannot go: threads of Python, the whole GPU, an engine without
our probe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join

from inferwatch.printing.command import command
from inferwatch.printing.document import Block, Code, PrintedHeading, Sentence

SECONDS = 10
SECRETS = ("--api-key", "--hf-token")
"""Flags whose values are not shown."""
NSYS_SESSION = "vllm"
NO_PROCESS = (
    "no process of this engine is seen here: run the command on its host, as its user"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcessCommand:
    """A process of an engine."""

    pid: int
    role: str
    arguments: Sequence[str] = ()
    """Its command line; empty where it is not known."""


def profiler_commands(processes: Sequence[EngineProcessCommand]) -> list[Block]:
    """Return the commands for these processes, the server's first."""
    if not processes:
        return [Sentence(text=NO_PROCESS)]
    blocks: list[Block] = [
        PrintedHeading("Python, by py-spy"),
        Sentence(
            text="Python, by py-spy: what each thread executes, for "
            f"{SECONDS} s, while the engine runs (as its user, or by sudo). Open the "
            "files at speedscope.app."
        ),
        Code(text="\n".join(_py_spy(each) for each in processes)),
        PrintedHeading("GPUs, by Nsight Systems"),
        Sentence(
            text="GPUs, by Nsight Systems: it must start the engine, and records only "
            "from start to stop. `inferwatch import` makes its file a profile of the "
            "session that was recorded meanwhile."
        ),
        Code(text="\n".join(_nsys(processes))),
    ]
    return blocks


def _py_spy(process: EngineProcessCommand) -> str:
    name = "".join(c if c.isalnum() else "-" for c in process.role).strip("-").lower()
    return join(
        [
            *("py-spy", "record", "--pid", str(process.pid)),
            *("--duration", str(SECONDS), "--rate", "200", "--threads", "--native"),
            *(
                "--format",
                "speedscope",
                "-o",
                f"{name or 'process'}-{process.pid}.json",
            ),
        ]
    )


def _nsys(processes: Sequence[EngineProcessCommand]) -> list[str]:
    known = next((each.arguments for each in processes if each.arguments), None)
    launched = join(_without_secrets(known)) if known else "vllm serve MODEL ..."
    flags = (
        "--trace=cuda,nvtx,osrt --cuda-graph-trace=node --trace-fork-before-exec=true"
    )
    return [
        f"nsys launch --session-new={NSYS_SESSION} {flags} {launched}",
        f"nsys start --session={NSYS_SESSION} -o steps",
        f"sleep {SECONDS}; nsys stop --session={NSYS_SESSION}",
        "nsys export --type sqlite -o steps.sqlite steps.nsys-rep",
        command("import", "steps.sqlite", "--session", "last"),
    ]


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which values of secret flags are left to fill in."""
    shown, hides = [], False
    for each in arguments:
        flag, equals, _ = each.partition("=")
        if hides and not each.startswith("--"):
            shown.append("...")
            continue
        hides = each in SECRETS
        shown.append(f"{flag}=..." if equals and flag in SECRETS else each)
    return shown
