"""A mix of classes, each for itself: what was asked, how long it took, if it held."""

from collections.abc import Mapping
from dataclasses import dataclass

from collectors.readings import RequestRecord
from inferwatch.metrics.load.book import ABORTED, LoadBook
from inferwatch.metrics.load.goodput import Goodput, goodput_of
from inferwatch.metrics.load.request_latencies import latencies_of
from inferwatch.metrics.load.slo import Slo
from inferwatch.metrics.series.intervals import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The requests of a class, or of a turn."""

    sent: int
    succeeded: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    latencies: dict[str, Estimate]
    slo: Slo | None = None
    goodput: Goodput | None = None


def by_class(
    book: LoadBook, slo: Slo | None, classes: Mapping[str, Slo]
) -> dict[str, Part]:
    """Each class of a mix, the most frequent first; empty where there is no mix."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in book.records:
        if record.class_name is not None:
            groups.setdefault(record.class_name, []).append(record)
    ordered = sorted(groups.items(), key=lambda each: -len(each[1]))
    return {
        name: part(book, records, classes.get(name, slo)) for name, records in ordered
    }


def by_turn(book: LoadBook) -> dict[str, Part]:
    """Each turn of the conversations; empty where those have one."""
    groups: dict[int, list[RequestRecord]] = {}
    for record in book.records:
        if record.turn is not None:
            groups.setdefault(record.turn, []).append(record)
    return {str(turn): part(book, groups[turn], None) for turn in sorted(groups)}


def part(book: LoadBook, records: list[RequestRecord], slo: Slo | None) -> Part:
    """These requests of a run."""
    succeeded = [each for each in records if each.failure is None]
    judged = slo is not None and bool(slo.limits)
    return Part(
        sent=len(records),
        succeeded=len(succeeded),
        failed=sum(each.failure not in {None, ABORTED} for each in records),
        prompt_tokens=sum(each.prompt_tokens or 0 for each in records),
        output_tokens=sum(each.output_tokens or 0 for each in succeeded),
        latencies=latencies_of(book, records),
        slo=slo if judged else None,
        goodput=goodput_of(book, records, slo, {}) if judged and slo else None,
    )
