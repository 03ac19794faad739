"""One plan sent by a client that kept up, and by one that starved."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Phase,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from inferwatch.studies.compare.comparison import Comparison
from inferwatch.studies.compare.quality import Quality
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.studies.compare.conftest import (
    ENGINE,
    LOAD,
    MS,
    ORIGIN_NS,
    PLAN,
    SECOND,
    write,
)

REQUESTS = 400
Compare = Callable[..., Comparison]


def session(
    late_ns: Callable[[int], int], *, plan: str = "", answer_ms: int = 60
) -> Iterator[AnyReading]:
    """Ten requests a second, sent so late; the server was watched."""
    yield LoadPlanned(t_ns=2, plan=(PLAN % (10.0, 1)).replace("}", f"{plan}}}"))
    yield LoadEvent(t_ns=ORIGIN_NS, kind=LoadKind.STARTED, source=LOAD)
    last_ns = ORIGIN_NS
    gaps = np.random.default_rng(1).exponential(SECOND / 10, REQUESTS)
    for index, due_ns in enumerate((ORIGIN_NS + np.cumsum(gaps)).astype(int).tolist()):
        sent_ns = due_ns + late_ns(due_ns)
        first_ns, last_ns = sent_ns + 40 * MS, sent_ns + answer_ms * MS
        for kind, t_ns, more in (
            (EventKind.ARRIVED, sent_ns, {"prompt_tokens": 32}),
            (EventKind.FIRST_TOKEN, first_ns, {}),
            (EventKind.FINISHED, last_ns, {"reason": "length", "output_tokens": 5}),
        ):
            facts: dict[str, Any] = {"request_id": f"r{index}", **more}
            yield RequestEvent(
                source=ENGINE, t_ns=t_ns, kind=kind, vantage=Vantage.FRONTEND, **facts
            )
        yield RequestRecord(
            source=LOAD,
            index=index,
            external_id=f"{LOAD}-{index}",
            phase=Phase.STEADY,
            intended_ns=due_ns,
            sent_ns=sent_ns,
            first_token_ns=first_ns,
            last_token_ns=last_ns,
            end_ns=last_ns,
            prompt_tokens=32,
            output_tokens=5,
        )
    yield LoadEvent(t_ns=last_ns + 1, kind=LoadKind.STOPPED, source=LOAD)


def each_second(due_ns: int) -> int:
    """It gets the processor only once a second."""
    return -due_ns % SECOND


@pytest.fixture
def compared(tmp_path: Path) -> Compare:
    def run(*late_ns: Callable[[int], int], **how: Any) -> Comparison:
        path = tmp_path / "starved.db"
        for name, each in zip(("steady", "starved"), late_ns, strict=True):
            write(path, name, session(each, **how))
        return run_comparison(
            ComparisonRequest(database=path, sessions=("steady", "starved"))
        )

    return run


def sentences(comparison: Comparison) -> dict[str, tuple[Quality, str]]:
    (pair,) = comparison.pairs
    return {each.subject: (each.quality, each.sentence) for each in pair.quality}


def test_one_plan_is_one_load_and_the_client_that_starved_is_accused(
    compared: Compare,
) -> None:
    found = sentences(compared(lambda _: 0, each_second))

    assert found["load"][0] is Quality.GOOD
    quality, said = found["client"]
    assert quality is Quality.DOUBTFUL
    accused = re.search(
        r"starved's client did not send when it was to: its sends came in bursts "
        r"\(burstiness (\d\.\d\d), planned (\d\.\d\d)\)",
        said,
    )
    assert accused is not None
    sent, planned = map(float, accused.groups())
    assert planned == pytest.approx(1.0, abs=0.15)
    assert sent > 2
    assert "steady" not in said


def test_who_waits_for_answers_as_planned_is_not_accused(compared: Compare) -> None:
    plan = ',"max_in_flight":5'  # each is answered after a second and more

    found = sentences(compared(lambda _: 0, each_second, plan=plan, answer_ms=1_500))

    assert "bursts" not in found["client"][1]
