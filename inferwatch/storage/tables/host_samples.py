"""Host samples: a row, and a row for each process in it."""

import sqlite3
from collections.abc import Iterator, Mapping

from collectors.readings import HostSample, ProcessUsage
from inferwatch.storage.place import START, Place
from inferwatch.storage.tables.batch import Batch, Key
from inferwatch.storage.tables.columns import Columns, insert_sql, select_sql
from inferwatch.storage.tables.table import KEY, Numbered

_sample = Columns(HostSample, without=("processes",))
_process = Columns(ProcessUsage)

INSERT = insert_sql("host_samples", (*KEY, *_sample.names))
SELECT = select_sql("host_samples", ("source", *_sample.names))
INSERT_PROCESS = insert_sql(
    "host_processes", ("session", "ordinal", "place", *_process.names)
)
SELECT_PROCESSES = (
    f"SELECT {', '.join(_process.names)} FROM host_processes "  # noqa: S608  our names
    "WHERE session = ? AND ordinal = ? ORDER BY place"
)


class HostSampleTable:
    """Two tables, one reading."""

    def add(self, batch: Batch, key: Key, reading: HostSample) -> None:
        """The sample's row and those of its processes."""
        batch.add(INSERT, key + _sample.values(reading))
        for place, usage in enumerate(reading.processes):
            batch.add(INSERT_PROCESS, (*key[:2], place, *_process.values(usage)))

    def complete(self, batch: Batch) -> None:
        """Nothing waits."""

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        place: Place = START,
    ) -> Iterator[Numbered]:
        """Samples are a second apart, so their processes are looked up one by one."""
        samples = connection.execute(SELECT, (session, place.ordinal))
        for ordinal, source, *values in samples:
            rows = connection.execute(SELECT_PROCESSES, (session, ordinal))
            processes = [ProcessUsage(**_process.restore(row)) for row in rows]
            fields = _sample.restore(values)
            yield (
                ordinal,
                HostSample(source=sources[source], processes=processes, **fields),
            )
