"""Whether a server heeds the priorities that a load's classes ask for."""

from collections.abc import Mapping

from inferwatch.loadgen.plan.plan import LoadPlan

POLICY = "scheduling_policy"
BY_PRIORITY = "priority"


def unheeded_priorities(plan: LoadPlan, settings: Mapping[str, object]) -> str | None:
    """Return in words that priorities are ignored, or may be; None where they count.

    vLLM takes them without a word under any policy, and heeds them under one alone.
    """
    asked = [
        f"{each.name} {each.priority}"
        for each in plan.classes
        if each.priority is not None
    ]
    policy = settings.get(POLICY)
    if not asked or policy == BY_PRIORITY:
        return None
    named = f"priorities ({', '.join(asked)})"
    if policy is None:
        return (
            f"it is not known whether the server heeds {named}, as no probe tells how "
            "it schedules: vLLM does under --scheduling-policy priority alone"
        )
    return (
        f"the server schedules by {policy} and ignores {named}: start it with "
        "--scheduling-policy priority"
    )
