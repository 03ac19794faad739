-- Schema version 13: what threads did in a stall, how a start went, and what servers tell
-- of their steps; see schema_1.sql and schema_2.sql.

-- Stalls.

CREATE TABLE stacks (                      -- what the processes of a stalled engine were
  session            INTEGER NOT NULL REFERENCES sessions,  -- executing, once a stall
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  pid                INTEGER NOT NULL,
  process            TEXT NOT NULL,        -- API server, EngineCore, worker 0
  stalled_ns         INTEGER NOT NULL,     -- when the last step had ended
  taken_by           TEXT,                 -- py-spy, faulthandler, vLLM's watchdog
  threads            TEXT NOT NULL,        -- JSON: [{name, frames: innermost first}]
  why                TEXT,                 -- why there are none, or not by py-spy
  stopped            INTEGER NOT NULL,     -- 1: by a signal or a debugger
  paused_ns          INTEGER,              -- how long reading paused it at most
  PRIMARY KEY (session, ordinal)
) STRICT;

-- Start-up and phases of requests.


-- Steps and KV events that servers tell.


-- Configuration.

