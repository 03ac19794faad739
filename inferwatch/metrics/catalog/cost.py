"""What watching costs and loses."""

from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

COST = metrics(
    "cost.",
    None,
    Metric(
        key="dropped_readings",
        abbr="lost",
        title="Readings lost",
        unit=Unit.READINGS,
        better=Better.LOWER,
        definition="Readings from a probe or a load generator that never reached us.",
        formula="sum of the notes that tell of losses",
    ),
    Metric(
        key="unrecorded_readings",
        abbr="unrec",
        title="Readings not recorded",
        unit=Unit.READINGS,
        better=Better.LOWER,
        definition="Readings that were shown, but could not be written to the record.",
        formula="counted by the recorder",
    ),
    Metric(
        key="self_cpu_s",
        abbr="cpu",
        title="Own CPU time",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="CPU seconds that inferwatch has used since it started.",
        formula="latest host sample",
    ),
    Metric(
        key="self_cpu_share",
        abbr="self",
        title="Own CPU share",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition="Share of one core that inferwatch used over the last 20 seconds.",
        formula="difference of host samples / time between them",
    ),
    Metric(
        key="process_cpu_share",
        abbr="CPU",
        title="CPU by process",
        unit=Unit.SHARE,
        definition=(
            "Share of one core used over the last five seconds (our own: over the last"
            " 20), by role: API server, EngineCore, workers, load generator, "
            "inferwatch."
        ),
        formula="difference of host samples / time between them",
    ),
    Metric(
        key="probe_us_per_step",
        abbr="probe",
        title="Probe per step",
        unit=Unit.MICROSECONDS,
        better=Better.LOWER,
        definition=(
            "Mean time per step that our hooks have taken on the engine's thread since"
            " the engine started."
        ),
        formula="probe cost / steps, of the latest totals",
    ),
)
