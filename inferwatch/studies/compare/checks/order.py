"""Did repeated runs come in turn, or all of one side first?"""

from inferwatch.studies.compare.quality import QualityCheck, judged
from inferwatch.studies.compare.reading.session_numbers import Side


def check_order(a: Side, b: Side) -> QualityCheck | None:
    """None for single runs: one of them must come first."""
    if not (a.is_repeated or b.is_repeated):
        return None
    began = sorted(
        (run.row.started_ns, letter)
        for side, letter in ((a, "A"), (b, "B"))
        for run in side.runs
    )
    if began[0][0] <= 0:
        return judged("order", (), None)
    order = "".join(letter for _, letter in began)
    first, last = (a, b) if order[0] == "A" else (b, a)
    if order == order[0] * len(first.runs) + order[-1] * len(last.runs):
        doubt = (
            f"All runs of {last.name} came after all runs of {first.name}: a machine "
            "that drifts would look like a change. Run them in turn (A B A B)."
        )
        return judged("order", [doubt], None)
    return judged("order", (), f"The runs came in turn: {' '.join(order)}.")
