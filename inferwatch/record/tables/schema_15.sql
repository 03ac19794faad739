-- Schema version 15: profiles of steps by the engine's own profiler; see schema_1.sql.

CREATE TABLE profiles (                    -- two rows each: as it starts and as it ends
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,     -- on, or off with its traces written
  rank               INTEGER NOT NULL,
  number             INTEGER NOT NULL,     -- counts those of an EngineCore
  state              TEXT NOT NULL,        -- started, ended, failed
  steps_asked        INTEGER NOT NULL,
  steps              INTEGER,              -- that ended while it was on
  prefix             TEXT NOT NULL,        -- of the names of its traces, which are kept
  directory          TEXT NOT NULL,        -- where vLLM wrote them; see docs/record.md
  asked_by           TEXT,
  why                TEXT,                 -- it ended early, or failed
  switch_ns          INTEGER,              -- how long that held the engine up
  realtime_ns        INTEGER NOT NULL,     -- wall clock at t_ns, which stamps traces
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;
