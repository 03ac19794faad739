"""The record: one SQLite file, one writer thread.

Recording: :mod:`writing.recorder` queues readings, and its thread commits them as rows.
Replay: :mod:`lookup.recorded_readings` and :mod:`replay` turn rows back into readings.
Each kind of reading has one table, which knows its rows both ways round
(:mod:`tables.reading_tables`); export and repair go by what it declares.
"""
