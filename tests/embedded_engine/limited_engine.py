"""An engine in this process whose limits are turned while it runs.

A program, not a test: prints what came of it, one JSON object a phase. Changes come
by the socket, as anybody's, but without a break between them.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from collectors.probe.control import control_path
from embedded_engine.engine.config import demo_dtype
from embedded_engine.probe import probe
from embedded_engine.probe.control import control_socket
from embedded_engine.probe.control.live_limits import SchedulerLimits
from embedded_engine.worker import answer_for_cpu_wheel

ROUND = 48
"""Requests under way at a time, more than may run."""
SEQS, CAP, TOKENS = 32, 8, 512


def main(model: Path, changes: int) -> None:
    restarted = not changes
    control_socket.TURN_S = 0.001
    answer_for_cpu_wheel()
    bench = Bench(model, CAP if restarted else SEQS)
    if restarted:
        tell(bench.trace())
        return
    bench.set(seqs=CAP)
    tell(bench.trace())
    bench.set(seqs=SEQS)
    tell(bench.drain())
    tell(bench.starve())
    tell(bench.shake(changes))
    tell(bench.blow())


class Bench:
    """The engine, and whoever turns its limits."""

    def __init__(self, model: Path, seqs: int) -> None:
        self.engine = boot(model, seqs)
        self.scheduler = self.engine.engine_core.engine_core.scheduler
        control = probe.start()._control
        assert control is not None
        control.desk._between_ns = 0
        self.desk = control.desk
        self.path = control_path(os.environ["INFERWATCH_ENGINE_ID"], os.getpid())
        self.preempted = 0
        self.outputs: dict[str, list[int]] = {}
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> None:
            self.preempted += 1
            preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted

    def add(self, name: str, prompt: list[int], tokens: int) -> None:
        from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415

        self.engine.add_request(
            name,
            TokensPrompt(prompt_token_ids=prompt),
            SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True),
        )

    def step(self) -> list[str]:
        """Whose tokens came."""
        got = []
        for output in self.engine.step():
            tokens = output.outputs[0].token_ids
            if len(tokens) > len(self.outputs.get(output.request_id, ())):
                got.append(output.request_id)
            self.outputs[output.request_id] = list(tokens)
        return got

    def set(self, seqs: int | None = None, tokens: int | None = None) -> None:
        with closing(Caller(self.path)) as caller:
            caller.change(seqs, tokens, keep=True)

    def trace(self) -> dict[str, Any]:
        """Who ran in each step of a fixed load, and how far each had come."""
        self.mixed("trace")
        steps = []
        while self.engine.has_unfinished_requests():
            self.step()
            running = self.scheduler.running
            steps.append(
                [(plain(r.request_id), r.num_computed_tokens) for r in running]
            )
        outputs = {plain(name): tokens for name, tokens in self.outputs.items()}
        return {"steps": steps, "outputs": outputs}

    def drain(self) -> dict[str, Any]:
        """A cap lowered from 32 to 8 under load."""
        for index in range(56):
            self.add(f"drain {index}", own(index, 20), 20 + 2 * (index % 32))
        while len(self.scheduler.running) < SEQS:
            self.step()
        self.set(seqs=CAP)
        running = []
        while self.engine.has_unfinished_requests():
            self.step()
            running.append(len(self.scheduler.running))
        self.set(seqs=SEQS)
        return {"running": running, "preempted": self.preempted}

    def starve(self) -> dict[str, Any]:
        """A budget of one token for 32 that run."""
        for index in range(SEQS):
            self.add(f"starve {index}", own(index, 5), 60)
        while len(self.scheduler.running) < SEQS:
            self.step()
        self.step()
        self.set(tokens=1)
        got: Counter[str] = Counter()
        for _ in range(20):
            got.update(self.step())
        lowered = self.scheduler.max_num_scheduled_tokens
        self.set(tokens=TOKENS)
        self.finish()
        return {"tokens": sorted(got.values()), "budget": lowered}

    def shake(self, changes: int) -> dict[str, Any]:
        """A mixed load while the limits change so often, and one untouched."""
        self.mixed("untouched")
        self.finish()
        shaker = Shaker(self.path, self.desk.limits, changes)
        shaker.start()
        rounds = steps = 0
        while shaker.is_alive():
            self.mixed(f"round {rounds}")
            rounds += 1
            while len(self.scheduler.requests) > ROUND // 2:
                self.step()
                steps += 1
        self.finish()
        different = [
            (number, index)
            for number in range(rounds)
            for index in range(ROUND)
            if self.outputs[f"round {number} {index}"]
            != self.outputs[f"untouched {index}"]
        ]
        return {
            "rounds": rounds,
            "steps": steps,
            "refused": shaker.refused,
            "changes": shaker.changes,
            "version": self.desk.limits.wanted.version,
            "different": len(different),
            "distinct": len(
                {str(self.outputs[f"untouched {i}"]) for i in range(ROUND)}
            ),
        }

    def mixed(self, name: str) -> None:
        """Short and long prompts, some alike in their beginning."""
        for index in range(ROUND):
            prompt = own(index % 5, 64) + own(index, 1 + (index * 53) % 250)
            self.add(f"{name} {index}", prompt, 1 + (index * 7) % 40)

    def blow(self) -> dict[str, Any]:
        """The probe breaks while a limit is lowered."""
        self.set(seqs=4, tokens=16)
        self.mixed("blown")
        self.step()
        before = self.scheduler.max_num_active_reqs
        probe.start().fuse.blow("for a test")
        after = (
            self.scheduler.max_num_active_reqs,
            (self.scheduler.max_num_scheduled_tokens),
        )
        self.finish()
        with closing(Caller(self.path)) as caller:
            refused = caller.change(4, None, keep=True)
        return {"before": before, "after": after, "refused": refused}

    def finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()


class Caller:
    """One connection to the engine's control."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def ask(self, **request: Any) -> dict[str, Any]:
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def change(self, seqs: int | None, tokens: int | None, **more: Any) -> str | None:
        version = self.ask(action="get")["limits"]["version"]
        asked = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens, **more}
        answer = self.ask(action="set", version=version, by="a test", **asked)
        refused: str | None = answer.get("refused")
        return refused


class Shaker(threading.Thread):
    """Turns both limits at random, and goes back, as often as there are steps."""

    def __init__(self, path: Path, limits: SchedulerLimits, changes: int) -> None:
        super().__init__(daemon=True)
        self._limits = limits
        self._most = changes
        self.changes = 0
        self.refused: list[str] = []
        self._path = path

    def run(self) -> None:
        draw = random.Random(7)
        while self.changes < self._most:
            with closing(Caller(self._path)) as caller:
                for _ in range(draw.randrange(1, 60)):
                    self._change(caller, draw)
                    while self._limits._applied is not self._limits.wanted:
                        time.sleep(0.001)  # until a step has gone by it
        with closing(Caller(self._path)) as caller:
            caller.ask(action="reset")

    def _change(self, caller: Caller, draw: random.Random) -> None:
        self.changes += 1
        if draw.random() < 0.1:
            caller.ask(action="reset")
            return
        seqs = draw.choice([1, 2, draw.randrange(1, SEQS), SEQS])
        tokens = draw.choice([1, 7, draw.randrange(1, TOKENS), TOKENS])
        if (why := caller.change(seqs, tokens)) is not None:
            self.refused.append(why)


def plain(request_id: str) -> str:
    """Without what vLLM adds to tell it from others of that name."""
    return request_id.rpartition("-")[0] or request_id


def own(index: int, length: int) -> list[int]:
    """A prompt unlike the others."""
    return [500 + (index * 37 + n * (1 + index % 7)) % 3000 for n in range(length)]


def boot(model: Path, seqs: int) -> Any:
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - patched for above

    arguments = EngineArgs(
        model=str(model),
        enforce_eager=True,
        dtype=demo_dtype(),
        distributed_executor_backend="uni",
        max_num_seqs=seqs,
        max_num_batched_tokens=TOKENS,
        max_model_len=1024,
        block_size=32,
        num_gpu_blocks_override=1024,
        kv_cache_memory_bytes=512 << 20,
    )
    return LLMEngine.from_engine_args(arguments)


def tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - that is its purpose


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    main(Path(sys.argv[1]), int(sys.argv[3]))
