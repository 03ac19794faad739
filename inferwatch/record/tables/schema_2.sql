-- Schema version 2: the load generator's own quality; see schema_1.sql.

CREATE TABLE client_samples (              -- how well the load generator did
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  span_ns            INTEGER NOT NULL,     -- what it covers, up to t_ns
  final              INTEGER NOT NULL,     -- 1: covers the whole run
  transport          TEXT NOT NULL,        -- raw, httpx
  sends              INTEGER NOT NULL,
  late_sends         INTEGER NOT NULL,     -- over 10 ms after their intended time
  send_lag_p50_ns    INTEGER,              -- from intended time to send
  send_lag_p99_ns    INTEGER,
  send_lag_max_ns    INTEGER,
  tokens             INTEGER NOT NULL,     -- chunks with tokens, of ended requests
  kernel_stamps      INTEGER NOT NULL,     -- how many of them the kernel stamped
  reads              INTEGER NOT NULL,     -- from sockets
  merged_reads       INTEGER NOT NULL,     -- that brought several chunks with tokens
  recv_lag_p50_ns    INTEGER,              -- from the kernel's stamp to ours
  recv_lag_p99_ns    INTEGER,
  recv_lag_max_ns    INTEGER,
  cpu_s              REAL NOT NULL,        -- of the generator's process, in the span
  in_flight          INTEGER NOT NULL,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

ALTER TABLE client_requests ADD COLUMN class_name TEXT;  -- in a mix of classes

ALTER TABLE token_times ADD COLUMN by_kernel INTEGER;    -- 1: the kernel stamped each
