"""An engine with known costs and a plain scheduler, told as its probe would tell it.

Its scheduler is written after vLLM's loop, request by request and block by block, and
shares nothing with the one under test.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    EngineSettings,
    EventKind,
    LimitChange,
    LiveLimits,
    RequestEvent,
    Step,
    Vantage,
)

MS = 1_000_000


@dataclass
class Job:
    """A request to be served."""

    ordinal: int
    due_ns: int
    prompt: int
    answer: int
    computed: int = 0
    outputs: int = 0
    blocks: int = 0
    priority: int = 0
    header: str | None = None

    @property
    def known(self) -> int:
        return self.prompt + self.outputs


@dataclass
class ScriptedEngine:
    """A step takes ``base + a request's * batch + a token's * prompt tokens``."""

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    kv_blocks: int = 10_000
    block_tokens: int = 16
    long_prefill_tokens: int = 0
    base_ns: int = 4 * MS
    member_ns: int = MS // 2
    token_ns: int = MS // 50
    gap_ns: int = MS // 5
    noise: float = 0.0
    front_end: bool = True
    """It tells when requests came, not only when the engine took them."""
    by_priority: bool = False
    """It schedules by the priorities of its jobs, and tells them."""
    turned: dict[int, int] = field(default_factory=dict)
    """Since when how many sequences may run, where that was changed on the way."""
    readings: list[AnyReading] = field(default_factory=list)

    def serve(self, jobs: list[Job], users: int = 0) -> list[AnyReading]:
        """Serve all; with users only so many are there at once."""
        self._begin()
        random = Random(3)
        coming = deque(sorted(jobs, key=lambda job: job.due_ns))
        waiting: deque[Job] = deque()
        running: list[Job] = []
        now_ns, index, free = 0, 0, self.kv_blocks
        started, turns = self.max_num_seqs, deque(sorted(self.turned.items()))
        while coming or waiting or running:
            in_flight = len(waiting) + len(running)
            while coming and (
                in_flight < users if users else coming[0].due_ns <= now_ns
            ):
                job = coming.popleft()
                if users:
                    job.due_ns = now_ns
                self._tell(job, EventKind.ADDED, now_ns)
                waiting.append(job)
                in_flight += 1
            if not waiting and not running:
                now_ns = coming[0].due_ns
                continue
            waiting = self._in_order(waiting)
            while turns and turns[0][0] <= now_ns:
                self._turn(now_ns, turns.popleft()[1], started)
            scheduled, preempted, free = self._schedule(waiting, running, free, now_ns)
            prompts = sum(n for job, n in scheduled if job.computed < job.known - 1)
            took_ns = self.base_ns + self.member_ns * len(scheduled)
            took_ns += self.token_ns * prompts
            took_ns = int(took_ns * (1 + self.noise * random.uniform(-1, 1)))
            end_ns = now_ns + took_ns
            produced = []
            for job, tokens in scheduled:
                job.computed += tokens
                produced.append(int(job.computed == job.known))
                job.outputs += produced[-1]
            index += 1
            self.readings.append(
                Step(
                    source="e",
                    index=index,
                    start_ns=now_ns,
                    end_ns=end_ns,
                    duration_ns=took_ns,
                    waiting=len(waiting),
                    bound_by=BoundBy.SEQS if waiting else BoundBy.NOTHING,
                    preempted=[job.ordinal for job in preempted],
                    members=[job.ordinal for job, _ in scheduled],
                    scheduled=[tokens for _, tokens in scheduled],
                    produced=produced,
                )
            )
            for job in [job for job in running if job.outputs == job.answer]:
                running.remove(job)
                free += job.blocks
                self._tell(job, EventKind.FINISHED, end_ns)
            now_ns = end_ns + self.gap_ns
        return self.readings

    def _in_order(self, waiting: deque[Job]) -> deque[Job]:
        if not self.by_priority:
            return waiting
        return deque(sorted(waiting, key=lambda job: (job.priority, job.due_ns)))

    def _turn(self, now_ns: int, seqs: int, started: int) -> None:
        """More may be running than may be admitted from now on."""
        self.max_num_seqs = seqs
        self.readings.append(
            LiveLimits(
                source="e",
                t_ns=now_ns,
                version=1,
                change=LimitChange.SET,
                max_num_seqs=seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                start_max_num_seqs=started,
                start_max_num_batched_tokens=self.max_num_batched_tokens,
            )
        )

    def _begin(self) -> None:
        self.readings = [
            EngineInfo(
                source="e",
                t_ns=0,
                pid=1,
                model="scripted",
                vllm_version="0",
                num_kv_blocks=self.kv_blocks,
                kv_block_tokens=self.block_tokens,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                prefix_caching=False,
            )
        ]
        if self.by_priority:
            self.readings.append(
                EngineSettings(
                    source="e", t_ns=0, settings={"scheduling_policy": "priority"}
                )
            )

    def _schedule(
        self, waiting: deque[Job], running: list[Job], free: int, now_ns: int
    ) -> tuple[list[tuple[Job, int]], list[Job], int]:
        budget = self.max_num_batched_tokens
        most = self.long_prefill_tokens if len(waiting) + len(running) > 1 else 0
        scheduled: list[tuple[Job, int]] = []
        preempted: list[Job] = []
        for job in list(running):
            if job not in running or not budget:
                continue
            tokens = min(job.known - job.computed, most or 10**9, budget)
            while (need := self._blocks(job.computed + tokens) - job.blocks) > free:
                victim = running.pop()
                preempted.append(victim)
                free += victim.blocks
                victim.blocks = victim.computed = 0
                waiting.appendleft(victim)
                if victim is job:
                    break
            if job not in running:
                break
            free -= need
            job.blocks += need
            scheduled.append((job, tokens))
            budget -= tokens
        return (
            scheduled,
            preempted,
            self._admit(
                waiting, running, scheduled, (0 if preempted else budget, free, now_ns)
            ),
        )

    def _admit(
        self,
        waiting: deque[Job],
        running: list[Job],
        scheduled: list[tuple[Job, int]],
        left: tuple[int, int, int],
    ) -> int:
        budget, free, now_ns = left
        most = self.long_prefill_tokens if len(waiting) + len(running) > 1 else 0
        while waiting and budget and len(running) < self.max_num_seqs:
            job = waiting[0]
            if self._blocks(job.known) > free:
                break
            waiting.popleft()
            tokens = min(job.known, most or 10**9, budget)
            job.blocks = self._blocks(tokens)
            free -= job.blocks
            if not job.outputs:
                self._tell(job, EventKind.SCHEDULED, now_ns)
            running.append(job)
            scheduled.append((job, tokens))
            budget -= tokens
        return free

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _tell(self, job: Job, kind: EventKind, t_ns: int) -> None:
        if kind is EventKind.ADDED and self.front_end:
            self.readings.append(
                RequestEvent(
                    source="e",
                    t_ns=job.due_ns,
                    kind=EventKind.ARRIVED,
                    vantage=Vantage.FRONTEND,
                    request_id=f"r{job.ordinal}",
                    tokenised_ns=job.due_ns,
                    header=job.header,
                )
            )
        self.readings.append(
            RequestEvent(
                source="e",
                t_ns=t_ns,
                kind=kind,
                vantage=Vantage.ENGINE,
                request_id=f"r{job.ordinal}",
                ordinal=job.ordinal,
                prompt_tokens=job.prompt,
                output_tokens=job.outputs or None,
                priority=job.priority if self.by_priority else None,
            )
        )


def jobs(count: int = 400, per_s: float = 12.0, seed: int = 1) -> list[Job]:
    """Requests that come at random, of many lengths."""
    random, now_s, made = Random(seed), 0.0, []
    for ordinal in range(count):
        now_s += random.expovariate(per_s)
        prompt, answer = random.randint(20, 700), random.randint(2, 160)
        made.append(Job(ordinal, int(now_s * 1e9), prompt, answer))
    return made
