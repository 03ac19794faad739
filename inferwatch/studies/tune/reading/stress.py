"""What a trial of a stress scenario means, read from its recorded session."""

import sqlite3

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.scenarios.finding import finding_of
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.load.scenarios.evidence import EngineTrail, ScenarioEvidence
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SessionPart, SourceNames, readable

ENGINE = {SessionPart.REQUESTS, SessionPart.STEPS}


def kept_finding(
    connection: sqlite3.Connection, session: int, plan: LoadPlan, book: LoadBook
) -> str | None:
    """Its sentence; None of a load that was no scenario.

    The server's own counters before and after are in no record: what only they tell
    is not told here.
    """
    if plan.scenario is None:
        return None
    trail, known = EngineTrail(), False
    names = SourceNames(connection.execute(SOURCES, (session,)).fetchall())
    for table in every_table():
        if table.part in ENGINE:
            for _, each in readable(table.read(connection, session, names)):
                trail.fold(each)
                known = True
    evidence = ScenarioEvidence(book=book, trail=trail if known else None)
    found = finding_of(plan.scenario, evidence)
    return found.sentence if found is not None else None
