"""Diagnoses of the host and GPU: what keeps the engine waiting."""

from collections.abc import Mapping

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Note
from inferwatch.formatting import (
    counted,
    format_bytes,
    format_duration,
    format_durations,
)
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.diagnosis import (
    Diagnosis,
    FindingCost,
    Lasting,
    ago_ns,
)
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import (
    Effort,
    Evidence,
    Finding,
    Knob,
    Subject,
)
from inferwatch.metrics.series.union import Span, union_ns, united
from inferwatch.metrics.steps.efficiency import StallKind
from inferwatch.metrics.steps.health import Health
from inferwatch.metrics.steps.stacks import STACKS_PAGE
from inferwatch.visible import visible

EVERY = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
FIVE_MINUTES_NS = 300 * NS_PER_S
ENGINE_ROLES = ("api", "core", "worker")


class Stopped(Diagnosis):
    """The engine has work, but no step ends."""

    NAME, TITLE = "stopped", "engine stalled"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_STEP,)
    MANY = "are stalled with work to do"
    LASTING = Lasting(least_s=2, of_s=5, gone_s=3)
    SILENT_S = 5

    def holds(self, facts: Facts) -> FindingCost | None:
        verdict = facts.verdict
        if verdict is None or verdict.health is not Health.STALLED:
            return None
        # Without any messages, readings are late, or the whole host is.
        if (facts.silent_s or 0.0) > self.SILENT_S and not self._idle(facts):
            return None
        return FindingCost(1.0, "all of the throughput")

    def sentence(self, facts: Facts) -> str:
        since_ns = facts.verdict.since_ns if facts.verdict else None
        quiet_s = (facts.now_ns - (since_ns or facts.now_ns)) / 1e9
        return (
            f"{facts.running or 0:,} run and {facts.waiting or 0:,} wait, and the last "
            f"step ended {quiet_s:.0f} s ago{self._idle(facts)}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        since_ns = facts.verdict.since_ns if facts.verdict else None
        evidence = [
            Evidence(text="the last step ended then", page="steps", t_ns=since_ns)
        ]
        if (held := facts.stacks) is not None:
            text = held.sentence
            evidence.insert(0, Evidence(text=text, page=STACKS_PAGE, t_ns=held.t_ns))
        for process in facts.host.processes if facts.host else ():
            if process.role in {"core", "worker"} and process.cpu_share is not None:
                text = (
                    f"{process.role} {process.pid} used {process.cpu_share:.0%} of a "
                    "core"
                )
                evidence.append(Evidence(text=text, page="hardware", t_ns=facts.now_ns))
        return tuple(evidence)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Look at the engine's log and its processes (stopped, swapping, stuck "
                "in "
                "a collective?); send requests elsewhere meanwhile",
                "steps go on, or the reason is found",
            ),
        )

    def _idle(self, facts: Facts) -> str:
        shares = [
            each.cpu_share
            for each in (facts.host.processes if facts.host else ())
            if each.role in {"core", "worker"} and each.cpu_share is not None
        ]
        if not shares or max(shares) > 0.05:
            return ""
        return "; its processes use no CPU: stopped, or waiting for something"


class HostGaps(Diagnosis):
    """Much of the time no step runs, though there is work."""

    NAME, TITLE = "host_bound", "host-bound"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_STEP,)
    MANY = "leave gaps between their steps"
    MISSES = EVERY
    LEAST = 0.25
    """Share of the time with work, 0-1."""
    LEAST_BUSY = 0.3
    """Share of the ten seconds with work, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        share = facts.gap_share
        if share is None or share < self.LEAST:
            return None
        if facts.busy_share() < self.LEAST_BUSY * (1 - share):
            return None
        return FindingCost(share, f"{share:.0%} of the time with work")

    def sentence(self, facts: Facts) -> str:
        steps = max(facts.steps.rows, 1)
        gap_ms = facts.steps.sums["gap_ns"] / steps / 1e6
        step_ms = (facts.step_s or 0.0) * 1e3
        return (
            f"{facts.gap_share or 0:.0%} of the time with work no step was under way: "
            f"{gap_ms:.1f} ms between steps of {step_ms:.1f} ms"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = f"gaps between {facts.steps.rows:,} steps of the last 10 s"
        evidence = [Evidence(text=text, page="steps", t_ns=facts.now_ns)]
        if used := host_use(facts):
            evidence.append(Evidence(text=used, page="hardware", t_ns=facts.now_ns))
        return tuple(evidence)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        flags = []
        if facts.setting("enforce_eager") is True:
            flags.append(
                facts.flag(
                    "enforce_eager",
                    "Leave this flag out: CUDA graphs are off with it",
                    "less host work a step; ITL falls",
                )
            )
        if facts.setting("async_scheduling") is not True:
            flags.append(
                facts.flag(
                    "async_scheduling",
                    "Let the next step be scheduled while one runs",
                    "the gaps close; ITL falls",
                )
            )
        return (
            now(
                "Give the engine's processes cores of their own (taskset, cgroups)",
                "gaps shrink",
            ),
            *flags,
        )


class Throttled(Diagnosis):
    """GPU clocks are throttled while there is work."""

    NAME, TITLE = "throttled", "GPU clocks held down"
    SUBJECT = Subject.ENGINE
    MANY = "run on GPUs whose clocks are held down"
    MISSES = EVERY
    HELD = 0.3
    LOST = 0.05
    """Share of the clock rate that is lost, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        worst = self._worst(facts)
        if worst is None or not facts.works:
            return None
        share, lost, _ = worst
        if share < self.HELD or lost < self.LOST:
            return None
        return FindingCost(
            share * lost, f"{lost:.0%} of the clock, for {share:.0%} of the time"
        )

    def sentence(self, facts: Facts) -> str:
        worst = self._worst(facts)
        if worst is None:
            return ""
        share, _, gpu = worst
        why = max(gpu.throttled, key=lambda each: gpu.throttled[each])
        return (
            f"Clocks of {self._name(gpu)} were held down for {share:.0%} of 10 s "
            f"({why}): "
            f"{gpu.sm_clock_mhz:,} of {gpu.info.max_sm_clock_mhz:,} MHz"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        worst = self._worst(facts)
        gpu = worst[2] if worst else None
        values = []
        if gpu is not None and gpu.power_w is not None:
            limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
            values.append(f"{gpu.power_w:.0f}{limit} W")
        if gpu is not None and gpu.temperature_c is not None:
            values.append(f"{gpu.temperature_c} °C")
        text = ", ".join(values) or "clocks event reasons"
        return (Evidence(text=text, page="hardware", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Raise the power limit (nvidia-smi -pl) or look after cooling",
                "clocks rise; prefill gains most",
            ),
            now("Send part of the load elsewhere", "less heat and power"),
        )

    def _worst(self, facts: Facts):  # type: ignore[no-untyped-def]  # noqa: ANN202
        losses = [
            (max(gpu.throttled.values()), 1 - gpu.sm_clock_mhz / clock, gpu)
            for gpu in facts.gpus
            if gpu.throttled
            and gpu.sm_clock_mhz is not None
            and (clock := gpu.info.max_sm_clock_mhz)
        ]
        return max(losses, key=lambda each: each[0] * each[1], default=None)

    def _name(self, gpu) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001
        index = gpu.info.index
        return f"GPU {index}" if index is not None else (gpu.info.name or "a GPU")


class CpuBusy(Diagnosis):
    """Other processes keep the cores of the engine's host busy."""

    NAME, TITLE = "host_busy", "host busy with other work"
    SUBJECT = Subject.ENGINE
    MANY = "share a host that others keep busy"
    MISSES = EVERY
    FULL = 0.95
    OTHERS = 0.3
    """Share of the cores used by other processes, 0-1."""
    SLOWER = 1.1
    """Ratio of decode steps to those before it, from which they are told."""

    def subject(self, facts: Facts) -> Subject:
        """Return measuring where a load generator is among those that share it."""
        processes = facts.host.processes if facts.host else ()
        loads = any(each.role == "load" for each in processes)
        return Subject.MEASURING if loads else Subject.ENGINE

    def holds(self, facts: Facts) -> FindingCost | None:
        share = self._others(facts)
        if share is None or share < self.OTHERS or not facts.works:
            return None
        return FindingCost(share, f"{share:.0%} of the host's cores")

    def sentence(self, facts: Facts) -> str:
        host = facts.host
        cores = host.cores if host else None
        named = ", ".join(
            f"{visible(each.name)}{f' ×{each.count}' if each.count > 1 else ''} "
            f"{each.cores:.1f}"
            for each in (host.others if host else ())
        )
        return (
            f"All {cores or 0:,} cores of the host are busy, "
            f"{self._others(facts) or 0:.0%} "
            "of them with processes that are not the engine's"
            f"{f': {named} cores' if named else ''}"
        )

    def usual_s(self, facts: Facts, since_ns: int) -> Mapping[int, float]:
        return facts.decode_steps(since_ns - FIVE_MINUTES_NS, since_ns)

    def finding(
        self,
        facts: Facts,
        cost: FindingCost,
        since_ns: int,
        usual_s: Mapping[int, float],
    ) -> Finding:
        """Return the finding; where decode steps tell what it does, with that."""
        now_s = facts.decode_steps(ago_ns(facts, 10), facts.now_ns) if usual_s else {}
        batch = max((each for each in now_s if each in usual_s), default=None)
        if batch is not None and now_s[batch] >= self.SLOWER * usual_s[batch]:
            both = format_durations((now_s[batch], usual_s[batch]))
            took, had = (each.strip() for each in both)
            harm = f"decode steps of {batch:,}: {took} instead of {had}"
            missed = cost.text.split("; ")[:-1]
            cost = FindingCost(cost.share, "; ".join([harm, *missed]))
        return super().finding(facts, cost, since_ns, usual_s)

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = host_use(facts) or "cores in use"
        largest = facts.host.others if facts.host else ()
        pids = ", ".join(f"{visible(each.name)} {each.pid}" for each in largest)
        text += f"; the largest others by pid: {pids}" if pids else ""
        return (Evidence(text=text, page="hardware", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Stop or move the other processes, or pin the engine to cores of its "
                "own",
                "steps and gaps get shorter",
            ),
        )

    def _others(self, facts: Facts) -> float | None:
        host = facts.host
        if host is None or not host.cores or host.busy is None:
            return None
        if host.busy < self.FULL * host.cores:
            return None
        mine = sum(each.cpu_share or 0.0 for each in host.processes)
        return max(host.busy - mine, 0.0) / host.cores


class MemoryFull(Diagnosis):
    """The memory of the engine's host is nearly used up."""

    NAME, TITLE = "host_memory", "host memory nearly full"
    SUBJECT = Subject.ENGINE
    MANY = "run on hosts whose memory is nearly full"
    FULL = 0.95
    PRICE = 0.1
    """What it counts as, as a risk and not a loss yet."""

    def holds(self, facts: Facts) -> FindingCost | None:
        share = self._share(facts)
        if share is None or share < self.FULL:
            return None
        return FindingCost(self.PRICE, "every request, once the OOM killer acts")

    def sentence(self, facts: Facts) -> str:
        host = facts.host
        whole = host.info.memory_bytes if host and host.info else None
        return (
            f"{self._share(facts) or 0:.0%} of the {format_bytes(whole).strip()} of "
            "memory is in use: when none is left, the OOM killer takes EngineCore"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        host = facts.host
        held = [
            f"{each.role} {format_bytes(each.rss_bytes).strip()}"
            for each in (host.processes if host else ())
            if each.rss_bytes
        ]
        text = f"in RAM: {', '.join(held)}" if held else "memory of the host in use"
        return (Evidence(text=text, page="hardware", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        flags = []
        if facts.on_cpu:
            flags.append(
                facts.flag(
                    "kv_cache_memory_bytes",
                    "Give the KV cache, which is in this memory, less of it",
                    "the host keeps memory; fewer KV blocks",
                )
            )
        flags += [
            facts.flag(name, "Hold less in the host's memory", "the host keeps memory")
            for name in ("swap_space", "cpu_offload_gb", "kv_offloading_size")
            if facts.setting(name)
        ]
        return (now("Stop or move other processes", "the host keeps memory"), *flags)

    def _share(self, facts: Facts) -> float | None:
        host = facts.host
        whole = host.info.memory_bytes if host and host.info else None
        if host is None or not whole or host.memory_used_bytes is None:
            return None
        return host.memory_used_bytes / whole


class CpuQuota(Diagnosis):
    """A cgroup CPU quota throttles the engine."""

    NAME, TITLE = "cpu_quota", "CPU quota reached"
    SUBJECT = Subject.ENGINE
    MANY = "are held back by a CPU quota"
    MISSES = EVERY
    LEAST = 0.1

    def holds(self, facts: Facts) -> FindingCost | None:
        share = self._share(facts)
        if share < self.LEAST or not facts.works:
            return None
        return FindingCost(share, f"{share:.0%} of the time")

    def sentence(self, facts: Facts) -> str:
        return (
            "The engine's control group was kept from running for "
            f"{self._share(facts):.0%} "
            "of the time: its CPU quota is used up"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        text = host_use(facts) or "throttled time of its control group"
        return (Evidence(text=text, page="hardware", t_ns=facts.now_ns),)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Raise the CPU limit of the container (cpu.max, resources.limits.cpu)",
                "steps and gaps get shorter",
            ),
        )

    def _share(self, facts: Facts) -> float:
        processes = facts.host.processes if facts.host else ()
        mine = [
            each.throttled or 0.0 for each in processes if each.role in ENGINE_ROLES
        ]
        return max(mine, default=0.0)


class FrontEnd(Diagnosis):
    """Tokenising, detokenising and sending take a large part of TTFT."""

    NAME, TITLE = "front_end", "front end too slow"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.API, Cause.SEND)
    MANY = "spend most of a TTFT in their API server"
    MISSES = ("ttft_s", "e2el_s")
    LEAST = 0.4
    LEAST_S = 0.02
    LEAST_N = 5

    def holds(self, facts: Facts) -> FindingCost | None:
        share, spent_s = self._spent(facts)
        if share is None or share < self.LEAST or spent_s < self.LEAST_S:
            return None
        if facts.ttft_n < self.LEAST_N:
            return None
        return FindingCost(share, f"{share:.0%} of the time to first tokens")

    def sentence(self, facts: Facts) -> str:
        share, spent_s = self._spent(facts)
        return (
            f"The API server took {spent_s * 1e3:,.0f} ms of a TTFT "
            f"({share or 0:.0%}) to "
            f"tokenise and send{self._busy(facts)}"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        evidence = []
        for cause in (Cause.API, Cause.SEND):
            if key := facts.slowest.get(cause):
                text = (
                    f"{cause.value}: {(facts.ttft_s(cause) or 0) * 1e3:,.0f} ms, mean"
                )
                evidence.append(Evidence(text=text, page="request", key=key))
        lag = facts.host.api_loop_lag_s if facts.host else None
        text = (
            f"its event loop ran {lag * 1e3:,.0f} ms late" if lag else "TTFT by cause"
        )
        page = "hardware" if lag else "requests"
        return (*evidence, Evidence(text=text, page=page, t_ns=facts.now_ns))

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            now(
                "Send shorter prompts, or already tokenised ones",
                "less to tokenise; TTFT falls",
            ),
            facts.flag(
                "api_server_count",
                "Start more API server processes",
                "TTFT falls, as far as there are cores",
            ),
        )

    def _spent(self, facts: Facts) -> tuple[float | None, float]:
        share = facts.ttft_share(Cause.API, Cause.SEND)
        return share, facts.ttft_s(Cause.API, Cause.SEND) or 0.0

    def _busy(self, facts: Facts) -> str:
        processes = facts.host.processes if facts.host else ()
        used = [each.cpu_share or 0.0 for each in processes if each.role == "api"]
        return f"; it uses {max(used):.0%} of a core" if used else ""


class Stalls(Diagnosis):
    """The engine stalls repeatedly."""

    NAME, TITLE = "stalls", "engine stalls"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.QUEUE_STEP,)
    MANY = "stall again and again"
    MISSES = EVERY
    LASTING = Lasting(least_s=5, of_s=10, gone_s=20)
    LEAST = 3
    SHARE = 0.1
    """Share of the last minute spent in stalls, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        gaps = self._gaps(facts)
        share = self._share(facts)
        if len(gaps) < self.LEAST or share < self.SHARE:
            return None
        return FindingCost(share, f"{share:.0%} of the last minute")

    def sentence(self, facts: Facts) -> str:
        gaps = self._gaps(facts)
        worst = max(each.end_ns - each.start_ns for each in gaps) / 1e9
        return (
            f"{len(gaps):,} times in a minute no step was under way for long, up to "
            f"{worst:.1f} s, though there was work"
        )

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        latest = self._gaps(facts)[0]
        evidence = [Evidence(text=latest.evidence, page="steps", t_ns=latest.start_ns)]
        if used := host_use(facts):
            evidence.append(Evidence(text=used, page="hardware", t_ns=facts.now_ns))
        return tuple(evidence)

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            now(
                "Look at what else runs on the host at those moments (swapping, other "
                "processes, a network file system)",
                "no more gaps",
            ),
        )

    def _gaps(self, facts: Facts):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return [each for each in facts.stalls if each.kind is StallKind.GAP]

    def _share(self, facts: Facts) -> float:
        stood_ns = sum(each.end_ns - each.start_ns for each in self._gaps(facts))
        return stood_ns / 1e9 / facts.minute_s if facts.minute_s else 0.0


class Compiling(Diagnosis):
    """The engine compiles while it serves, and every request waits for it."""

    NAME, TITLE = "compiling", "compiles while serving"
    SUBJECT = Subject.ENGINE
    EXPLAINS = (Cause.COMPILATION, Cause.QUEUE_STEP)
    MANY = "compile while they serve"
    MISSES = EVERY
    LASTING = Lasting(least_s=2, of_s=5, gone_s=10)
    SHARE = 0.05
    """Share of the last minute spent compiling, 0-1."""

    def holds(self, facts: Facts) -> FindingCost | None:
        share = self._spent_s(facts) / facts.minute_s if facts.minute_s else 0.0
        if share < self.SHARE:
            return None
        return FindingCost(share, f"{share:.0%} of the last minute")

    def sentence(self, facts: Facts) -> str:
        n = counted(len(united(map(_span, facts.compilations))), "compilation")
        spent = format_duration(self._spent_s(facts)).strip()
        return f"{n} while it served took {spent} of the last minute, and all waited"

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        firsts = {start for start, _ in united(map(_span, facts.compilations))}
        once = [each for each in facts.compilations if each.t_ns in firsts]
        ranked = sorted(once, key=lambda each: -(each.duration_ns or 0))
        return tuple(
            Evidence(
                text=f"{each.text}, {format_duration(took_ns / NS_PER_S).strip()}",
                page="steps",
                t_ns=each.t_ns,
            )
            for each in ranked[:3]
            if (took_ns := each.duration_ns)
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        sizes = facts.setting("max_cudagraph_capture_size")
        return (
            now(
                "Send requests of each kind and size before users do: what is compiled "
                "is kept until a restart",
                "later ones find it compiled",
            ),
            Knob(
                text="Compile and capture the sizes of your batches at start "
                "(compile_sizes, cudagraph_capture_sizes)",
                flag="--compilation-config",
                present=None if sizes is None else f"graphs up to {sizes}",
                expected="a longer start; no compilation while it serves",
                effort=(Effort.RESTART,),
            ),
        )

    def _spent_s(self, facts: Facts) -> float:
        """Seconds in which at least one worker compiled: several tell of the same."""
        spans = map(_span, facts.compilations)
        return union_ns(spans, 0, facts.now_ns) / NS_PER_S


def _span(compilation: Note) -> Span:
    start_ns = compilation.t_ns
    return start_ns, start_ns + (compilation.duration_ns or 0)


def host_use(facts: Facts) -> str:
    """Return which processes use the cores of the engine's host, as text."""
    host = facts.host
    if host is None or host.busy is None:
        return ""
    roles: dict[str, float] = {}
    for each in host.processes:
        roles[each.role] = roles.get(each.role, 0.0) + (each.cpu_share or 0.0)
    roles["others"] = max(host.busy - sum(roles.values()), 0.0)
    named = ", ".join(f"{role} {share:.1f}" for role, share in roles.items())
    return f"{host.busy:.1f} of {host.cores or 0:,} cores busy: {named}"
