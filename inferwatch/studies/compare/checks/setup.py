"""Was it the same model on the same GPUs? What else differs is what is compared."""

from collections.abc import Iterable, Iterator

from inferwatch.formatting import counted
from inferwatch.studies.compare.checks.load import SEED, TOLERANCE, load_settings
from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.configuration import FLAG, LOAD, differing
from inferwatch.studies.compare.reading.session_numbers import Side

MODEL, DEVICE = "engine model", "engine device"
VERSIONS = ("engine vllm_version", "inferwatch")
GPU, DRIVER, POWER = "gpu", "gpu driver", "gpu power limit"
OF_THE_MACHINE = {MODEL, DEVICE, *VERSIONS, GPU, DRIVER, POWER}
MOST_SETTINGS = 4


def check_model(a: Side, b: Side) -> QualityCheck:
    """Of another model even tokens need not be the same."""
    models = _values(MODEL, a, b)
    doubts = []
    if len(models) > 1:
        doubts.append(
            f"The models differ ({', '.join(models)}): what changed may be the "
            "model's, and a token need not be the same of both."
        )
    doubts += _tokenizer(a, b)
    return judged("model", doubts, _both("served", models, MODEL, a, b))


def _tokenizer(a: Side, b: Side) -> Iterator[str]:
    """Which one cut a prompt is not recorded; what became of the same prompts is."""
    plans = [load_settings(run) for run in (*a.runs, *b.runs)]
    if not plans[0].get(SEED) or any(plan != plans[0] for plan in plans):
        return
    if _differ(a.load.requests, b.load.requests):
        return  # these are not the same prompts
    before, after = a.load.prompt_tokens, b.load.prompt_tokens
    if before and after and _differ(before, after):
        yield (
            f"The same plan and seed made prompts of {before:,.0f} and {after:,.0f} "
            "tokens: another tokenizer cut them, and what is said by token is of other "
            "tokens."
        )


def _differ(before: float, after: float) -> bool:
    return abs(after - before) > TOLERANCE * before


def check_engine(a: Side, b: Side) -> QualityCheck:
    """A version may be what is compared, so it is named and no doubt."""
    versions = _values(VERSIONS[0], a, b)
    good = _both("ran on vLLM", versions, VERSIONS[0], a, b)
    if len(versions) > 1:
        good = f"vLLM differs ({', '.join(versions)}): part of what is compared."
    return judged("engine", [], good)


def check_gpu(a: Side, b: Side) -> QualityCheck:
    """Model, number, driver, power limit."""
    told = {
        GPU: "GPUs differ",
        DEVICE: "Devices differ",
        DRIVER: "GPU drivers differ",
        POWER: "Power limits of GPUs differ",
    }
    found = [
        f"{words} ({', '.join(values)})"
        for name, words in told.items()
        if len(values := _values(name, a, b)) > 1
    ]
    doubts = []
    if found:
        doubts = [f"{'. '.join(found)}: what changed may be the hardware's."]
    gpus, devices = _values(GPU, a, b), _values(DEVICE, a, b)
    good = _both("ran on", gpus, GPU, a, b)
    if not gpus and devices == ["cpu"]:
        good = "Both ran on the processor, without a GPU."
    return judged("gpu", doubts, good)


def check_settings(a: Side, b: Side) -> QualityCheck:
    """What people change is what they compare: it is listed further down."""
    both = [run.configuration for run in (*a.runs, *b.runs)]
    if not all(any(each.values()) for each in both):
        return judged("settings", [], None)
    names = [
        each.name.removeprefix("engine ").removeprefix(FLAG)
        for each in differing(both)
        if each.name not in OF_THE_MACHINE and not each.name.startswith(LOAD)
    ]
    doubts = []
    for side in (a, b):
        within = differing([run.configuration for run in side.runs])
        if own := [each.name for each in within if not each.name.startswith(LOAD)]:
            doubts.append(f"The runs of {side.name} differ in {_some(own)}.")
    if not names:
        return judged("settings", doubts, "No recorded setting of the engine differs.")
    said = f"{counted(len(names), 'setting')} of the engine"
    said = f"{said} {'differs' if len(names) == 1 else 'differ'} ({_some(names)})"
    return judged("settings", doubts, f"{said}: what is compared.")


def _some(names: list[str]) -> str:
    more = ["…"] if len(names) > MOST_SETTINGS else []
    return ", ".join([*names[:MOST_SETTINGS], *more])


def _values(name: str, a: Side, b: Side) -> list[str]:
    """Each there is, once, in order; what is unknown is left out."""
    every = (run.configuration.get(name) for run in (*a.runs, *b.runs))
    return list(dict.fromkeys(each for each in every if each is not None))


def _both(did: str, values: Iterable[str], name: str, a: Side, b: Side) -> str | None:
    """None where it is not known of all."""
    every = (run.configuration.get(name) for run in (*a.runs, *b.runs))
    return f"Both {did} {', '.join(values)}." if None not in set(every) else None
