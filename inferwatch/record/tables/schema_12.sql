-- Schema version 12: how far drafts of speculative decoding were accepted, all that a
-- server exposes, why requests are deferred, and how long compilations take; see
-- schema_1.sql and schema_2.sql.

ALTER TABLE steps ADD COLUMN drafts INTEGER; -- requests whose drafts were verified
ALTER TABLE steps ADD COLUMN accepted_by_position TEXT NOT NULL DEFAULT '[]'; -- JSON

CREATE TABLE metrics_pages (               -- a server's /metrics, every ten seconds
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  whole              INTEGER NOT NULL,     -- 1: all lines, else values that changed
                                           -- since the source's latest whole one
  whole_ns           INTEGER,              -- t_ns of that one
  left_out           INTEGER NOT NULL,     -- lines beyond the longest page kept
  content            BLOB NOT NULL,        -- zlib(JSON): lines; or places (the steps
                                           -- from one line number to the next), values
  PRIMARY KEY (session, ordinal)
) STRICT;

ALTER TABLE steps ADD COLUMN deferred_by     TEXT;    -- grammar, KV transfer, adapter,
                                  -- encoder, streaming input, held prefill
ALTER TABLE steps ADD COLUMN deferred        INTEGER; -- waiting requests passed over
ALTER TABLE steps ADD COLUMN deferred_before TEXT;    -- why they waited before the step,
                                                      -- while none ran

ALTER TABLE notes ADD COLUMN duration_ns INTEGER; -- of compilations, where known
