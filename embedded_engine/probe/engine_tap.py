"""What happens on EngineCore's own thread: look, make one small record, return.

Numbers and references to what vLLM will not change go into the channel; names,
ordinals and readings are made of them on the channel's thread (see ``engine_story``).
Nothing is set on vLLM's objects; starts and ends of steps pair first in, first out.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from embedded_engine.channel import Record
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.bound_by import Bound
from embedded_engine.probe.engine_story import EngineStory, Scheduled
from embedded_engine.probe.hooks import Given, Hook, Moments
from embedded_engine.probe.idle_cache import IdleCache
from embedded_engine.probe.outputs import Outputs
from embedded_engine.probe.reader import Reader, Vllm
from embedded_engine.probe.work import Work


class EngineTap:
    """The hooks on one scheduler, from its birth on."""

    def __init__(
        self,
        scheduler: Vllm,
        story: EngineStory,
        idle_cache: IdleCache,
        put: Callable[[Record], None],
        missing: Callable[[str], None],
    ) -> None:
        self.scheduler_id = id(scheduler)
        self.members = 0
        """Requests scheduled so far, over all steps."""
        self.steps = 0
        self._story = story
        self._put = put
        self._idle_cache = idle_cache
        self._bound = Bound(scheduler, missing)
        self._work = Work(missing)
        self._outputs = Outputs(missing)
        self._queues = Reader("Scheduler", names.QUEUES, missing)
        self._step = Reader("SchedulerOutput", names.STEP, missing)
        self._first = Reader("NewRequestData", names.FIRST, missing)
        self._queued = Reader("Request", names.QUEUED, missing)
        self._computed = Reader("Request", names.COMPUTED, missing)
        self._ended = Reader("Request", names.ENDED, missing)
        self._open: deque[Scheduled] = deque()
        self._ending: list[Given] = []
        self._preempted: list[str] = []
        self._out_of_blocks = self._scheduling = self._updating = False
        self._previous_end_ns = 0

    def schedules(self, _: Vllm, __: Given) -> None:
        """Before ``schedule()``."""
        self._scheduling, self._out_of_blocks = True, False

    def scheduled(self, scheduler: Vllm, _: Given, output: Vllm, at: Moments) -> None:
        """After ``schedule()``; nothing scheduled is no step."""
        self._scheduling = False
        members, tokens, new, resumed = self._step.read(output)
        if not tokens:
            return
        firsts = [self._first.read(request) for request in new]
        for request_id, cached in firsts:
            self._put((self._story.scheduled, at[0], request_id, cached))
        starting = [*resumed, *(request_id for request_id, _ in firsts)]
        queues = self._queues.read(scheduler)
        bound = self._bound.by(
            scheduler, queues, (len(members), tokens), preempted=self._out_of_blocks
        )
        work = self._work.of_step(scheduler, members, starting)
        running, waiting, holding, _ = queues
        waits = len(waiting) + len(holding)
        preempted, self._preempted = self._preempted, []
        self._open.append(
            Scheduled(
                members, at[0], tokens, len(running), waits, bound, preempted, *work
            )
        )

    def updates(self, _: Vllm, __: Given) -> None:
        """Before ``update_from_output()``."""
        self._updating = True

    def updated(
        self, scheduler: Vllm, given: Given, outputs: Vllm, at: Moments
    ) -> None:
        """After ``update_from_output()``: the step is done."""
        self._updating = False
        end_ns = at[1]
        if (step := self._oldest(given[0])) is not None:
            free = self._queues.read(scheduler)[3]
            cached = self._idle_cache.count(free)
            produced = self._outputs.of(outputs)
            span = (max(step.start_ns, self._previous_end_ns), end_ns)
            self._put(
                (self._story.step, self.steps, step, produced, span, free, cached)
            )
            self._previous_end_ns = end_ns
            self.steps += 1
            self.members += len(step.members)
        if self._ending:
            for t_ns, *ended in self._ending:
                self._put((self._story.finished, t_ns or end_ns, *ended))
            self._ending.clear()

    def _oldest(self, output: Vllm) -> Scheduled | None:
        """The step this output is of; one that never came to its end is forgotten."""
        members = self._step.read(output)[0]
        while members and self._open:
            step = self._open.popleft()
            if step.members is members:
                return step
        return None

    def added(self, _: Vllm, given: Given, __: None, at: Moments) -> None:
        """After ``add_request()``: it is in the queue."""
        request_id, prompt_tokens, max_tokens, params = self._queued.read(given[0])
        temperature = getattr(params, names.TEMPERATURE, None)
        self._put(
            (
                self._story.added,
                at[1],
                request_id,
                prompt_tokens,
                max_tokens,
                temperature,
            )
        )

    def preempts(self, _: Vllm, given: Given) -> None:
        """Before ``_preempt_request()``, which forgets what was computed."""
        request_id, computed = self._computed.read(given[0])
        self._work.preempted(request_id, computed)
        self._preempted.append(request_id)
        self._out_of_blocks |= self._scheduling

    def freed(self, _: Vllm, given: Given, __: object, at: Moments) -> None:
        """After ``_free_request()``: it finished, or somebody ended it.

        Told after the step that is under way, since that may have it as a member; what
        a step's own tokens finished, ended when the step did.
        """
        request_id, tokens, preemptions, reason = self._ended.read(given[0])
        self._work.ended(request_id)
        ended = (request_id, str(reason()), tokens, preemptions)
        if self._updating or self._open:
            self._ending.append((0 if self._updating else at[1], *ended))
        else:
            self._put((self._story.finished, at[1], *ended))


def hooks(tap_of: Callable[[Vllm], EngineTap | None]) -> dict[str, Hook]:
    """By the table's names; each finds the tap of the scheduler it is called on."""

    def before(look: Callable[[EngineTap, Vllm, Given], None]) -> Any:  # noqa: ANN401
        def hook(scheduler: Vllm, given: Given) -> None:
            if (tap := tap_of(scheduler)) is not None:
                look(tap, scheduler, given)

        return hook

    def after(look: Callable[[EngineTap, Vllm, Given, Any, Moments], None]) -> Any:  # noqa: ANN401
        def hook(scheduler: Vllm, given: Given, result: Vllm, at: Moments) -> None:
            if (tap := tap_of(scheduler)) is not None:
                look(tap, scheduler, given, result, at)

        return hook

    return {
        "schedule": Hook(after(EngineTap.scheduled), before(EngineTap.schedules)),
        "update": Hook(after(EngineTap.updated), before(EngineTap.updates)),
        "add": Hook(after(EngineTap.added)),
        "preempt": Hook(after(lambda *_: None), before(EngineTap.preempts)),
        "free": Hook(after(EngineTap.freed)),
    }
