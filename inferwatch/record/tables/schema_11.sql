-- Schema version 11: limits that are changed while an engine runs, and tunes, which look
-- for the best settings; see schema_1.sql and schema_2.sql.

CREATE TABLE live_limits (                 -- what limits an engine from t_ns on, where
  session            INTEGER NOT NULL REFERENCES sessions,  -- it may be changed
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  version            INTEGER NOT NULL,     -- counts changes
  change             TEXT NOT NULL,        -- start, set, reset, watcher gone
  max_num_seqs       INTEGER NOT NULL,     -- in force
  max_num_batched_tokens INTEGER NOT NULL,
  start_max_num_seqs INTEGER NOT NULL,     -- as it was started
  start_max_num_batched_tokens INTEGER NOT NULL,
  changed_by         TEXT,                 -- NULL: nobody, at start
  kept               INTEGER NOT NULL,     -- 1: stays when who set it goes
  fixed              TEXT NOT NULL,        -- JSON object, by limit: why it cannot change
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

-- Tunes belong to no session: each of their trials is one, or none.

CREATE TABLE tunes (
  tune_id            TEXT NOT NULL PRIMARY KEY,
  began_wall_ns      INTEGER NOT NULL,     -- Unix time
  plan               TEXT NOT NULL,        -- JSON, without secrets: what was asked for
  ended_wall_ns      INTEGER,              -- NULL: it goes on, or was cut short
  outcome            TEXT
) STRICT;

CREATE TABLE tune_trials (                 -- one setting, measured once
  tune_id            TEXT NOT NULL REFERENCES tunes,
  number             INTEGER NOT NULL,     -- from 1, in the order they were measured
  point              TEXT NOT NULL,        -- JSON list of [flag, value]
  repeat             INTEGER NOT NULL,     -- from 0, of each point
  outcome            TEXT NOT NULL,        -- measured, did not start, failed, left out
  session            TEXT,                 -- sessions.id, which may be deleted since
  cause              TEXT,                 -- of any outcome but measured
  live               INTEGER NOT NULL,     -- 1: turned in a running engine
  life               INTEGER NOT NULL,     -- counts the starts of an engine
  took_s             REAL NOT NULL,
  began_wall_ns      INTEGER NOT NULL,     -- Unix time
  PRIMARY KEY (tune_id, number)
) STRICT;
