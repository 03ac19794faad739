"""The record: one SQLite file, one writer thread.

Recording: :mod:`recorder` queues readings, :mod:`writer` turns them into rows and
commits them. Replaying: :mod:`replay` turns rows back into the same readings. What a
kind of reading looks like as rows is known to one *table* each (:mod:`tables`), both
ways round.
"""
