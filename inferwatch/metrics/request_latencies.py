"""The latencies of a client's requests, each with its interval."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from collectors.readings import RequestRecord
from inferwatch.metrics.estimate import Estimate, estimate
from inferwatch.metrics.load_book import LoadBook
from inferwatch.metrics.quantiles import Ints

LATENCIES = (
    "ttft_s",
    "ttft_from_send_s",
    "first_content_s",
    "tpot_s",
    "itl_s",
    "e2el_s",
    "e2el_from_send_s",
)
"""TTFT and E2EL from the moment a send was due, and again from the send; first content
where an answer begins with reasoning, and only there."""


def latencies_of(
    book: LoadBook, records: Sequence[RequestRecord]
) -> dict[str, Estimate]:
    """TTFT of all that had a first token, the others of who succeeded."""
    succeeded = [each for each in records if each.failure is None]
    found = {
        "ttft_s": _between("intended_ns", "first_token_ns", records),
        "ttft_from_send_s": _between("sent_ns", "first_token_ns", records),
        "first_content_s": _between("intended_ns", "first_content_ns", records),
        "tpot_s": estimate(_ints(_known(map(tpot_ns, succeeded)))),
        "itl_s": estimate(_gaps_ns(book, succeeded)),
        "e2el_s": _between("intended_ns", "last_token_ns", succeeded),
        "e2el_from_send_s": _between("sent_ns", "last_token_ns", succeeded),
    }
    if all(each.first_content_ns is None for each in records):
        del found["first_content_s"]
    return found


def tpot_ns(record: RequestRecord) -> int | None:
    """From the first token to the last, by the tokens in between.

    A first chunk of several tokens is one moment: where the server counts tokens in
    each chunk, all of them are left out, else one.
    """
    first_ns, last_ns = record.first_token_ns, record.last_token_ns
    tokens = (record.output_tokens or 0) - (record.first_chunk_tokens or 1)
    if first_ns is None or last_ns is None or tokens < 1:
        return None
    return round((last_ns - first_ns) / tokens)


def _gaps_ns(book: LoadBook, records: Sequence[RequestRecord]) -> Ints:
    gaps = [np.array(book.gaps_of(each), np.int64) for each in records]
    return np.concatenate(gaps) if gaps else np.zeros(0, np.int64)


def _between(start: str, end: str, records: Sequence[RequestRecord]) -> Estimate:
    pairs = ((getattr(each, start), getattr(each, end)) for each in records)
    known = (b - a for a, b in pairs if a is not None and b is not None)
    return estimate(_ints(known))


def _known(values: Iterable[int | None]) -> Iterator[int]:
    """Zero is known: tokens that came together."""
    return (value for value in values if value is not None)


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)
