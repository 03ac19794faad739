"""Compares what-if predictions from one run of real vLLM with measurements.

Predicts each number twice: as users would, and with the machine's slowness at each
moment taken from the measured run, which cannot be predicted and shows how good the
model of the scheduler is. Aim: p50 within 10%, p99 within 20%, or no prediction. Needs
an idle machine.

    benchmarks/what_if.py
"""

import asyncio
import os
from tempfile import TemporaryDirectory

from inferwatch.studies.what_if.outcome import measured_outcome
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SettingChange
from tests.program.what_if_runs import served

WITHIN = {"p50": 0.10, "p99": 0.20}
METRICS = ("ttft_s", "tpot_s")
SETTINGS: dict[str, tuple[SettingChange, list[str]]] = {
    "the same setting": (SettingChange(), []),
    "16 requests at once": (SettingChange(max_num_seqs=16), ["--max-num-seqs=16"]),
    "8 requests at once": (SettingChange(max_num_seqs=8), ["--max-num-seqs=8"]),
    "half of the blocks": (
        SettingChange(kv_blocks=127),
        ["--num-gpu-blocks-override=128", "--max-model-len=2048"],
    ),
}


def main() -> None:
    with TemporaryDirectory() as folder:
        os.environ["INFERWATCH_RUNTIME_DIR"] = f"{folder}/run"
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        recorded = asyncio.run(served())
        print("predicted, and by how much that missed what was measured")
        for name, (change, flags) in SETTINGS.items():
            truth = asyncio.run(served(*flags))
            print(name)
            show("  foretold", predict(recorded, [change]), truth)
            with_machine = predict(recorded, [change], machine=truth.steps)
            show("  machine known", with_machine, truth)


def show(title: str, what_if: WhatIf, truth: RecordedRun) -> None:
    """Print a line for each number."""
    (predicted,) = what_if.predictions
    if predicted.outcome is None:
        print(title, "cannot be told:", predicted.cannot)
        return
    was = measured_outcome(truth)
    for metric in METRICS:
        for percent, most in WITHIN.items():
            true = getattr(was.latencies[metric], percent)
            number = getattr(predicted.outcome.latencies[metric], percent)
            name = f"{metric} {percent}"
            cannot = what_if.untold.get(name) or predicted.unsure.get(name)
            miss = number / true - 1
            verdict = "said cannot" if cannot else "ok" if abs(miss) <= most else "MISS"
            print(
                f"{title:<16}{name:<12}{number * 1e3:9.1f} ms of {true * 1e3:9.1f} ms "
                f"{miss:+7.1%}  {verdict}"
            )


if __name__ == "__main__":
    main()
