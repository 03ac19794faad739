"""Recordings: one SQLite file, one writer thread.

Recording: :mod:`recording.recorder` queues readings, and its thread commits them as
rows. Replay: :mod:`recorded_readings` turns rows back into the same readings. Each kind
of reading has one table that knows its rows in both directions
(:mod:`tables.reading_tables`); export and repair rely on the tables' declarations.
"""
