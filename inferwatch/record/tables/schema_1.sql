-- Schema version 1. SQLite keeps these texts, comments included: `.schema steps` in
-- anyone's own tool shows the units. Once released, a version is never edited: a change
-- is a new migration.
--
-- Common to all tables of readings: `session` points to sessions; `ordinal` is the order
-- of receipt, unique in its session over all tables, and replay goes by it; `source`
-- points to sources. Times `*_ns` are session time. Unknown is NULL, never 0.

CREATE TABLE schema_versions (
  version            INTEGER PRIMARY KEY,
  inferwatch_version TEXT NOT NULL         -- which inferwatch migrated to it
) STRICT;

CREATE TABLE sessions (                    -- one watch from start to stop
  session            INTEGER PRIMARY KEY AUTOINCREMENT,
  id                 TEXT AS ('s' || session) VIRTUAL,  -- what people type
  name               TEXT,                 -- chosen with --name
  command            TEXT NOT NULL,        -- demo, serve, attach ...
  model              TEXT,
  state              TEXT NOT NULL,        -- recording, complete, interrupted
  reason             TEXT,                 -- why it ended, where that is known
  started_ns         INTEGER NOT NULL,     -- Unix time
  ended_ns           INTEGER,              -- Unix time
  start_monotonic_ns INTEGER NOT NULL,     -- session time + this = raw host time
  duration_ns        INTEGER NOT NULL DEFAULT 0,  -- as of the last commit, like all
  readings           INTEGER NOT NULL DEFAULT 0,  -- counts below
  steps              INTEGER NOT NULL DEFAULT 0,
  requests           INTEGER NOT NULL DEFAULT 0,
  unrecorded         INTEGER NOT NULL DEFAULT 0,  -- readings that are missing here
  inferwatch_version TEXT NOT NULL,
  boot_id            TEXT NOT NULL,        -- boot, pid and birth (clock ticks of the
  pid                INTEGER NOT NULL,     -- boot) name the process that records
  birth              INTEGER
) STRICT;

CREATE TABLE sources (                     -- engines, GPUs, load runs
  session            INTEGER NOT NULL REFERENCES sessions,
  source             INTEGER NOT NULL,
  name               TEXT NOT NULL,
  PRIMARY KEY (session, source)
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (                       -- passes of scheduler and model
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  rank               INTEGER NOT NULL,     -- data-parallel rank
  step               INTEGER NOT NULL,     -- counts since the engine started
  start_ns           INTEGER NOT NULL AS (end_ns - duration_ns - overlap_ns) VIRTUAL,
  end_ns             INTEGER NOT NULL,     -- when all tokens of the step came out
  duration_ns        INTEGER NOT NULL,     -- idle and overlap left out
  overlap_ns         INTEGER NOT NULL,     -- ran while the step before still ran
  prefill_requests   INTEGER NOT NULL,
  decode_requests    INTEGER NOT NULL,
  prefill_tokens     INTEGER NOT NULL,
  decode_tokens      INTEGER NOT NULL,
  output_tokens      INTEGER NOT NULL,     -- that came out; sum over the members
  padded_tokens      INTEGER,
  graph_mode         TEXT,
  drafted_tokens     INTEGER,
  accepted_tokens    INTEGER,
  running            INTEGER NOT NULL,     -- requests, after scheduling
  waiting            INTEGER NOT NULL,
  bound_by           TEXT NOT NULL,        -- nothing, seqs, tokens, kv, other
  kv_used_blocks     INTEGER,
  kv_cached_blocks   INTEGER,              -- idle, still holding a prefix
  kv_free_blocks     INTEGER,              -- idle, empty
  preemptions        INTEGER NOT NULL,
  recomputed_tokens  INTEGER NOT NULL,
  prefix_queries     INTEGER,              -- prompt tokens looked up
  prefix_hits        INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE step_members (                -- who was in which step: a blob a batch
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,     -- of its first step
  steps              INTEGER NOT NULL,     -- how many it holds
  members            BLOB NOT NULL,        -- zlib(JSON), see README
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE requests (                    -- front end and engine in one row
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,     -- of the first that was heard of it
  source             INTEGER NOT NULL,
  request_id         TEXT NOT NULL,        -- vLLM's internal id
  external_id        TEXT,                 -- the id the client knows
  member             INTEGER,              -- its number in step_members
  prompt_tokens      INTEGER,
  cached_tokens      INTEGER,              -- of the prompt, found in the prefix cache
  max_tokens         INTEGER,
  temperature        REAL,
  preemptions        INTEGER,
  arrived_ns         INTEGER,              -- front end, as the four below
  tokenised_ns       INTEGER,
  first_token_ns     INTEGER,
  finished_ns        INTEGER,
  output_tokens      INTEGER,
  reason             TEXT,                 -- stop, length, abort, error, repetition
  added_ns           INTEGER,              -- engine, as all below
  scheduled_ns       INTEGER,
  engine_finished_ns INTEGER,
  engine_output_tokens INTEGER,
  engine_reason      TEXT,
  ttft_s             REAL AS ((first_token_ns - arrived_ns) / 1e9) VIRTUAL,
  e2el_s             REAL AS ((finished_ns - arrived_ns) / 1e9) VIRTUAL,
  tpot_s             REAL AS ((finished_ns - first_token_ns) / 1e9
                       / nullif(max(output_tokens - 1, 0), 0)) VIRTUAL,
  queue_s            REAL AS ((scheduled_ns - added_ns) / 1e9) VIRTUAL,
  arrived_ordinal    INTEGER,              -- for replay: the order of receipt of each
  first_token_ordinal INTEGER,             -- event, and which optional fields it
  finished_ordinal   INTEGER,              -- carried (a bit each)
  added_ordinal      INTEGER,
  scheduled_ordinal  INTEGER,
  engine_finished_ordinal INTEGER,
  arrived_carried    INTEGER,
  first_token_carried INTEGER,
  finished_carried   INTEGER,
  added_carried      INTEGER,
  scheduled_carried  INTEGER,
  engine_finished_carried INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE client_requests (             -- as the load generator saw them
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  number             INTEGER NOT NULL,     -- counts the requests of the load run
  external_id        TEXT NOT NULL,        -- requests.external_id contains it
  phase              TEXT NOT NULL,        -- warmup, steady, burst
  intended_ns        INTEGER NOT NULL,
  sent_ns            INTEGER,
  first_token_ns     INTEGER,
  last_token_ns      INTEGER,
  end_ns             INTEGER,
  prompt_tokens      INTEGER,
  output_tokens      INTEGER,
  failure            TEXT,                 -- NULL when it succeeded
  detail             TEXT,
  ttft_s             REAL AS ((first_token_ns - intended_ns) / 1e9) VIRTUAL,
  e2el_s             REAL AS ((last_token_ns - intended_ns) / 1e9) VIRTUAL,
  tpot_s             REAL AS ((last_token_ns - first_token_ns) / 1e9
                       / nullif(max(output_tokens - 1, 0), 0)) VIRTUAL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE token_times (                 -- chunk arrivals of one client request
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  external_id        TEXT NOT NULL,
  first_ns           INTEGER NOT NULL,
  gaps               INTEGER NOT NULL,     -- how many follow
  gaps_ns            BLOB NOT NULL,        -- zlib(JSON list)
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE load_events (
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  kind               TEXT NOT NULL,        -- started, warmup_ended, rate, burst, stopped
  rate_per_s         REAL,
  text               TEXT NOT NULL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE engines (                     -- EngineCores, once each
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  pid                INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  model              TEXT NOT NULL,
  vllm_version       TEXT NOT NULL,
  device             TEXT,
  dtype              TEXT,
  num_kv_blocks      INTEGER,
  kv_block_tokens    INTEGER,
  max_num_seqs       INTEGER,
  max_num_batched_tokens INTEGER,
  max_model_len      INTEGER,
  tensor_parallel    INTEGER,
  pipeline_parallel  INTEGER,
  data_parallel      INTEGER,
  executor           TEXT,
  prefix_caching     INTEGER,              -- 0 or 1
  async_scheduling   INTEGER,              -- 0 or 1
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE endpoints (                   -- HTTP servers of engines
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  pid                INTEGER NOT NULL,
  model              TEXT NOT NULL,
  url                TEXT,
  uds                TEXT,
  log_path           TEXT,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE totals (                      -- what a probe counted since its start
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  steps              INTEGER NOT NULL,
  output_tokens      INTEGER NOT NULL,
  requests_added     INTEGER NOT NULL,
  requests_finished  INTEGER NOT NULL,
  probe_cost_ns      INTEGER NOT NULL,     -- spent on the engine's thread
  sender_cpu_ns      INTEGER,
  rank               INTEGER NOT NULL,
  running            INTEGER,
  waiting            INTEGER,
  kv_used_blocks     INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE host_samples (
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  loop_lag_s         REAL,                 -- of inferwatch's own event loop, worst
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE host_processes (              -- the processes of a host sample
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,     -- of the host sample
  place              INTEGER NOT NULL,
  pid                INTEGER NOT NULL,
  role               TEXT NOT NULL,        -- api, core, worker, load, inferwatch
  cpu_s              REAL NOT NULL,        -- user and system since it started
  rss_bytes          INTEGER NOT NULL,
  PRIMARY KEY (session, ordinal, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpus (
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  name               TEXT,
  uuid               TEXT,
  absent_because     TEXT,                 -- why there is none to measure
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE clock_anchors (               -- wall and monotonic clock, read together
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  wall_ns            INTEGER NOT NULL,     -- Unix time
  uncertainty_ns     INTEGER NOT NULL,
  boot_id            TEXT NOT NULL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE notes (                       -- start-up stages, losses, bookmarks ...
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  kind               TEXT NOT NULL,
  text               TEXT NOT NULL,
  count              INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE ticks (                       -- moments at which a snapshot was taken
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE other_readings (              -- what has no place of its own above, such
  session            INTEGER NOT NULL REFERENCES sessions,  -- as a request's second
  ordinal            INTEGER NOT NULL,                      -- finish: none is lost
  source             INTEGER NOT NULL,
  kind               TEXT NOT NULL,        -- class of the reading
  reading            BLOB NOT NULL,        -- MessagePack, as on the wire
  PRIMARY KEY (session, ordinal)
) STRICT;
