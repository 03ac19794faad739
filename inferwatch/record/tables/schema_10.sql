-- Schema version 10: what limits follow from; see schema_1.sql and schema_2.sql.

CREATE TABLE model_configs (               -- what the model of an engine is built of
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  model              TEXT NOT NULL,
  config             TEXT NOT NULL,        -- JSON object, as a config.json
  dtype              TEXT,
  kv_dtype           TEXT,                 -- resolved: never auto
  quantization       TEXT,
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE engine_settings (             -- what an engine is set to
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  settings           TEXT NOT NULL,        -- JSON object, by the names of vLLM's flags
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker_memory (               -- who has the memory of a worker's device
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  worker             INTEGER NOT NULL,     -- its place among those of the rank
  gpu                TEXT,                 -- UUID
  total_bytes        INTEGER,              -- of the device
  allowed_bytes      INTEGER,              -- what the engine may use
  weight_bytes       INTEGER,
  kv_bytes           INTEGER,
  activation_bytes   INTEGER,              -- peak of the profiling run
  graph_bytes        INTEGER,              -- CUDA graphs
  workspace_bytes    INTEGER,              -- what is not torch's
  read_from          TEXT NOT NULL,        -- JSON object, by column: where it was read
  load_s             REAL,                 -- what loading its weights took
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE measured_peaks (              -- what a host or GPU was measured to do
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  device             TEXT NOT NULL,
  threads            INTEGER,
  bytes_per_s        REAL,                 -- copying, read and written together
  read_bytes_per_s   REAL,
  cached_bytes_per_s TEXT NOT NULL,        -- JSON object, by bytes read repeatedly
  flops              TEXT NOT NULL,        -- JSON object, by dtype
  measured_wall_s    REAL,                 -- Unix time
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE prices (                      -- what time or energy costs
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  gpu_hour           REAL,
  kwh                REAL,
  currency           TEXT NOT NULL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

ALTER TABLE gpus ADD COLUMN peak_flops REAL;  -- FLOP/s, where somebody said so
