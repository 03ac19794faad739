"""Where a server counts no tokens, what takes them is unknown wherever it is told."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from collectors.contract.readings import AnyReading, RequestRecord, TokenTimes
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.result_formats import vllm_bench
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.result import load_result
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.printing.export.html.page_data import ClientColumns
from inferwatch.record.connections import open_for_reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.sessions.sizes import summarise
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.reading.session_reader import SessionQuery, read_session
from inferwatch.studies.compare.reading.span import SpanChoice
from tests.inferwatch.studies.compare.conftest import LOAD, SECOND, write
from tests.inferwatch.studies.compare.test_client_latencies import REQUESTS, mixed_run


def uncounted(every: int) -> Iterator[AnyReading]:
    """One in so many answers without a count of its tokens."""
    for reading in mixed_run():
        if isinstance(reading, RequestRecord) and not reading.index % every:
            yield msgspec.structs.replace(
                reading, output_tokens=None, first_chunk_tokens=None
            )
        else:
            yield reading


@pytest.fixture(scope="module", params=[1, 12], ids=["all", "some"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("uncounted") / "client.db"
    write(path, "uncounted", uncounted(request.param))
    return path


def read(path: Path, slo: str) -> SessionNumbers:
    ask = SessionQuery(
        choice=SpanChoice(from_s=-1.0, to_s=1e4), objectives={"": parse_slo(slo)}
    )
    with closing(open_for_reading(path)) as connection:
        return read_session(connection, find(path, "last"), ask)


def test_a_comparison_has_no_rate_of_tokens(recorded: Path) -> None:
    numbers = read(recorded, "ttft_s<45ms")

    assert "client.output_tokens_per_s" not in numbers.sums
    assert numbers.throughput is None
    assert numbers.sums["client.goodput_per_s"].above.sum() > 10


def test_a_comparison_has_no_goodput_of_a_tpot(recorded: Path) -> None:
    assert "client.goodput_per_s" not in read(recorded, "tpot_s<50ms").sums


def test_the_list_of_sessions_has_no_rate_of_tokens(recorded: Path) -> None:
    summary = summarise(recorded, 1)

    assert summary.n > 50
    assert summary.output_tokens_per_s is None


def test_a_report_has_a_gap_where_an_answer_was_not_counted() -> None:
    page = ClientColumns(span_ns=REQUESTS * SECOND)
    for reading in uncounted(12):
        if isinstance(reading, RequestRecord):
            page.record(reading)
        elif isinstance(reading, TokenTimes):
            page.times(reading)

    _, columns = page.columns()

    gaps = sum(each is None for each in columns["tokens"])
    assert 5 <= gaps < sum(each is not None for each in columns["tokens"])


def test_a_result_for_other_tools_says_null() -> None:
    book = LoadBook(LOAD)
    for reading in uncounted(12):
        book.fold(reading)

    found = vllm_bench(LoadPlan(run_id=LOAD, model="m"), book, load_result(book))

    for total in ("total_output_tokens", "output_throughput", "total_token_throughput"):
        assert found[total] is None, total
    assert found["total_input_tokens"] == 32 * found["completed"]
    lengths = [
        length
        for length, error in zip(found["output_lens"], found["errors"], strict=True)
        if not error
    ]
    assert None in lengths
    assert 0 not in lengths
    json.dumps(found, allow_nan=False)
