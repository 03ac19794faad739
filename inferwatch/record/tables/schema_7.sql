-- Schema version 7: what running servers tell those who ask: over HTTP, in traces, in
-- cache events; see schema_1.sql.

CREATE TABLE servers (                     -- what a server is; anew when that changes
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  name               TEXT NOT NULL,
  family             TEXT NOT NULL,        -- vllm, sglang, llamacpp, openai
  url                TEXT,
  uds                TEXT,
  version            TEXT,
  models             TEXT NOT NULL,        -- JSON list
  max_model_len      INTEGER,
  started_wall_ns    INTEGER,              -- Unix time
  num_kv_blocks      INTEGER,              -- of one rank
  kv_block_tokens    INTEGER,
  insecure           INTEGER NOT NULL,     -- 1: its certificate is not verified
  settings           TEXT NOT NULL,        -- JSON object, in the server's own words
  advice             TEXT NOT NULL,        -- JSON list: what would make more known
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE contacts (                    -- whether a server answers, when that changed
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  answers            INTEGER NOT NULL,     -- 0 or 1
  why                TEXT,
  restarted          INTEGER NOT NULL,     -- 1: its counters began anew
  round_trip_ns      INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE engine_samples (              -- what a rank said of itself: one scrape
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,     -- middle of the exchange
  uncertainty_ns     INTEGER NOT NULL,     -- half of what it took
  by_prometheus      INTEGER NOT NULL,     -- 1: a Prometheus server scraped it
  rank               TEXT NOT NULL,        -- the label "engine"
  running            INTEGER,
  waiting            INTEGER,
  kv_usage           REAL,                 -- 0-1
  prompt_tokens      INTEGER,              -- since the server's process began; so are
  output_tokens      INTEGER,              -- all that follow
  prefix_queries     INTEGER,              -- tokens
  prefix_hits        INTEGER,              -- tokens
  preemptions        INTEGER,
  ttft_sum_s         REAL,                 -- a mean is a difference of sums over one of
  ttft_count         INTEGER,              -- counts
  itl_sum_s          REAL,
  itl_count          INTEGER,
  layout             INTEGER NOT NULL,     -- points to sample_layouts
  base               INTEGER NOT NULL,     -- ordinal from which `place` counts anew
  place              INTEGER NOT NULL,     -- among those of its source and rank
  changes            BLOB NOT NULL,        -- since the one before; place 0: since zero
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE sample_layouts (              -- what does not change from scrape to scrape
  session            INTEGER NOT NULL REFERENCES sessions,
  layout             INTEGER NOT NULL,
  model              TEXT,
  finished           TEXT NOT NULL,        -- JSON list: ways in which requests ended
  others             TEXT NOT NULL,        -- JSON list: names
  histograms         TEXT NOT NULL,        -- JSON list of [key, how many counts, bounds]
  PRIMARY KEY (session, layout)
) STRICT, WITHOUT ROWID;

CREATE TABLE request_spans (               -- a finished request, as a trace tells it
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  request_id         TEXT NOT NULL,
  arrived_ns         INTEGER NOT NULL,
  end_ns             INTEGER NOT NULL,
  uncertainty_ns     INTEGER NOT NULL,     -- of both; durations are exact
  ttft_ns            INTEGER,
  queue_ns           INTEGER,
  prefill_ns         INTEGER,
  decode_ns          INTEGER,
  e2el_ns            INTEGER,
  prompt_tokens      INTEGER,
  output_tokens      INTEGER,
  max_tokens         INTEGER,
  temperature        REAL,
  ttft_s             REAL AS (ttft_ns / 1e9) VIRTUAL,
  queue_s            REAL AS (queue_ns / 1e9) VIRTUAL,
  e2el_s             REAL AS (e2el_ns / 1e9) VIRTUAL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE kv_cache_events (             -- what changed in the prefix cache
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  sequence           INTEGER NOT NULL,
  missed             INTEGER NOT NULL,     -- batches that did not arrive before
  cleared            INTEGER NOT NULL,     -- 1: all were forgotten first
  block_tokens       INTEGER,
  stored_blocks      INTEGER NOT NULL,     -- how many
  removed_blocks     INTEGER NOT NULL,
  hashes             BLOB NOT NULL,        -- zlib(JSON): stored, parents, removed
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE watched_slos (                -- what requests were to hold from then on
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  slo                TEXT NOT NULL,        -- as --slo writes it
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE canary_requests (             -- tiny requests of ours to a server of others
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,     -- that server
  sent_ns            INTEGER NOT NULL,
  first_token_ns     INTEGER,
  gaps_ns            TEXT NOT NULL,        -- JSON list: between its chunks
  prompt_tokens      INTEGER,
  output_tokens      INTEGER,
  by_kernel          INTEGER,              -- 1: the kernel stamped each chunk
  failure            TEXT,                 -- NULL: it succeeded
  detail             TEXT,
  ttft_s             REAL AS ((first_token_ns - sent_ns) / 1e9) VIRTUAL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;
