"""Diagnoses of an engine's start: what the next one need not take."""

from abc import abstractmethod

from collectors.contract.readings import OF_WEIGHTS, Stage
from inferwatch.formatting import duration_text, format_bytes, format_share
from inferwatch.metrics.findings.diagnosis import Diagnosis, FindingCost, Lasting
from inferwatch.metrics.findings.facts import Facts, now
from inferwatch.metrics.findings.finding import Effort, Evidence, Knob, Subject
from inferwatch.metrics.steps.startup import StageTime, Startup

FRESH_S = 120
"""How long after a start it is worth a finding; what is served costs it nothing."""
LEAST_S = 10.0
"""A stage that takes less is no trouble."""


class _OfStart(Diagnosis):
    """A stage of the start that took needlessly long."""

    SUBJECT = Subject.ENGINE
    LASTING = Lasting(least_s=1, of_s=5, gone_s=1)

    def holds(self, facts: Facts) -> FindingCost | None:
        start = facts.startup
        stage = None if start is None else self.stage(start)
        if start is None or stage is None or facts.up_s > FRESH_S:
            return None
        if stage.duration_s < LEAST_S:
            return None
        return FindingCost(0.0, f"of a start of {duration_text(start.duration_s)}")

    @abstractmethod
    def stage(self, start: Startup) -> StageTime | None:
        """Return the stage, if it is in question."""

    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        start = facts.startup
        stages = start.stages if start is not None else ()
        text = ", ".join(f"{s.stage} {duration_text(s.duration_s)}" for s in stages)
        return (Evidence(text=f"the start: {text}", page="limits", t_ns=None),)


class SlowStorage(_OfStart):
    """Weights came from storage, and loading them mostly waited for it."""

    NAME, TITLE = "slow_storage", "slow storage"
    MANY = "wait for storage when they start"
    SLOW_BYTES_PER_S = 1e9
    """Less than half of what one ordinary NVMe drive gives."""
    MOSTLY = 0.5
    """Share of the weights that storage fetched, and of the time waited, 0-1."""

    def stage(self, start: Startup) -> StageTime | None:
        read = start.stage(*OF_WEIGHTS)
        if read is None or read.bytes_per_s is None or not read.n_bytes:
            return None
        fetched, waited = start.storage_bytes, start.waited_share
        if fetched is None or waited is None:
            return None
        slow = read.bytes_per_s < self.SLOW_BYTES_PER_S
        mostly = fetched >= self.MOSTLY * read.n_bytes and waited >= self.MOSTLY
        return read if slow and mostly else None

    def sentence(self, facts: Facts) -> str:
        start = facts.startup
        read = None if start is None else start.stage(*OF_WEIGHTS)
        if start is None or read is None:
            return ""
        rate = (read.bytes_per_s or 0.0) / 1e9
        return (
            f"Weights were read at {rate:.2f} GB/s: "
            f"{format_bytes(start.storage_bytes).strip()} came from storage, and "
            f"{format_share(start.waited_share).strip()} of "
            f"{duration_text(read.duration_s)} was waiting"
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        del facts
        return (
            Knob(
                text="Read ahead with several threads",
                flag="--safetensors-load-strategy prefetch",
                present=None,
                expected="a shorter start where storage serves several reads at once",
                effort=(Effort.RESTART,),
            ),
            now(
                "Keep the weights on a local drive, or in the host's memory",
                "the next start reads them faster",
            ),
        )


class CompileCacheMissed(_OfStart):
    """The engine compiled anew what a cache would have kept."""

    NAME, TITLE = "compile_cache_missed", "compile cache missed"
    MANY = "compile anew when they start"

    def stage(self, start: Startup) -> StageTime | None:
        compiled = start.stage(Stage.COMPILE)
        return compiled if compiled is not None and compiled.cached is False else None

    def sentence(self, facts: Facts) -> str:
        start = facts.startup
        compiled = None if start is None else start.stage(Stage.COMPILE)
        if start is None or compiled is None:
            return ""
        return (
            f"Compiling took {duration_text(compiled.duration_s)} of a start of "
            f"{duration_text(start.duration_s)}: nothing usable was in the compile "
            "cache"
        )

    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        return (
            Knob(
                text="Set VLLM_CACHE_ROOT to a directory on a volume that outlives the "
                "container: the next start with the same model, flags and version "
                "loads what this one compiled",
                flag=None,
                present=None,
                expected=f"a start shorter by up to {self._saved(facts)}",
                effort=(Effort.RESTART,),
            ),
        )

    def _saved(self, facts: Facts) -> str:
        start = facts.startup
        compiled = None if start is None else start.stage(Stage.COMPILE)
        return (
            duration_text(compiled.duration_s) if compiled is not None else "all of it"
        )
