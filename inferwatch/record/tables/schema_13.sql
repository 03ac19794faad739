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

ALTER TABLE requests ADD COLUMN thinking_tokens INTEGER; -- of a reasoning model: output
                                                  -- tokens before the answer

ALTER TABLE requests ADD COLUMN media_items         INTEGER; -- images, sounds, videos
ALTER TABLE requests ADD COLUMN media_cached        INTEGER; -- of these, preprocessed
                                                  -- before: in the multimodal cache
ALTER TABLE requests ADD COLUMN fetch_start_ns      INTEGER; -- media, by the front end
ALTER TABLE requests ADD COLUMN fetch_end_ns        INTEGER;
ALTER TABLE requests ADD COLUMN preprocess_start_ns INTEGER;
ALTER TABLE requests ADD COLUMN preprocess_end_ns   INTEGER;

CREATE TABLE startup_stages (              -- what an engine's start consisted of
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,     -- when it began
  duration_ns        INTEGER NOT NULL,
  stage              TEXT NOT NULL,        -- imports, device, build model, load weights,
                                           -- read, transfer, process weights, profile run,
                                           -- compile, KV allocation, graph capture, warm-up
  rank               INTEGER NOT NULL,
  worker             INTEGER,              -- NULL: before there were workers
  n_bytes            INTEGER,              -- of weights, KV cache or graphs
  storage_bytes      INTEGER,              -- of weights, what storage had to fetch
  waited_ns          INTEGER,              -- in which the loading thread did not run
  cached             INTEGER,              -- 1: compiled before
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;


-- Steps and KV events that servers tell.

ALTER TABLE steps ADD COLUMN memberless     INTEGER NOT NULL DEFAULT 0; -- 1: published
                                  -- by the server, without who was in it: output_tokens
                                  -- is 0, bound_by tells only whether any waited
ALTER TABLE steps ADD COLUMN context_tokens INTEGER; -- in the KV cache already
ALTER TABLE kv_cache_events ADD COLUMN medium TEXT; -- tier, CPU or DISK; NULL: the GPU
