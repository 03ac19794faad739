"""What watching costs and loses."""

from inferwatch.metrics.catalog.metric import Better, Unit, metrics

LOW, NEITHER = Better.LOWER, Better.NEITHER

COST = metrics(
    "cost.",
    None,
    (
        "dropped_readings",
        "lost",
        "Readings lost",
        Unit.READINGS,
        LOW,
        "Readings of a probe or load generator that never reached us.",
        "sum of the notes that tell of losses",
    ),
    (
        "unrecorded_readings",
        "unrec",
        "Readings not recorded",
        Unit.READINGS,
        LOW,
        "Readings that were shown but could not be written to the record.",
        "counted by the recorder",
    ),
    (
        "self_cpu_s",
        "cpu",
        "Own CPU time",
        Unit.SECONDS,
        LOW,
        "CPU seconds inferwatch has used since it started.",
        "latest host sample",
    ),
    (
        "self_cpu_share",
        "self",
        "Own CPU share",
        Unit.SHARE,
        LOW,
        "Share of one core that inferwatch used over the last five seconds.",
        "difference of host samples / time between them",
    ),
    (
        "process_cpu_share",
        "CPU",
        "CPU by process",
        Unit.SHARE,
        NEITHER,
        (
            "Share of one core used over the last five seconds, by role: API server, "
            "EngineCore, workers, load generator, inferwatch."
        ),
        "difference of host samples / time between them",
    ),
    (
        "probe_us_per_step",
        "probe",
        "Probe per step",
        Unit.MICROSECONDS,
        LOW,
        "Mean time a step spent in our hooks on the engine's thread since it started.",
        "probe cost / steps, of the latest totals",
    ),
)
