"""The sketch of a plan: what its seed draws, as far as that was drawn."""

from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.ui.load.sketch import MOST_DRAWN, preview


def test_what_was_not_drawn_is_no_pause() -> None:
    rate = MOST_DRAWN / 5
    plan = LoadPlan(
        run_id="run",
        model="m",
        arrivals=Arrivals.CONSTANT,
        rate_per_s=rate,
        duration_s=10,
    )

    client = preview(plan, 4).client

    assert client is not None
    assert client.timeline.asked_per_s == (rate,) * 4
    drawn, _, *rest = client.timeline.sent_per_s
    assert drawn is not None
    assert abs(drawn - rate) <= 1
    assert rest == [None, None]
