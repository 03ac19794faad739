"""The record: one SQLite file, one writer thread.

Recording: :mod:`recording.recorder` queues readings, and its thread commits them as
rows. Replaying: :mod:`recorded_readings` turns rows back into the same readings. What a
kind of reading looks like as rows is known to one table each, both ways round
(:mod:`tables.reading_tables`); export and repair go by what it declares.
"""
