-- Schema version 5: bookmarks begin with their key, and latencies of clients are those
-- that `load` reports; see schema_1.sql.
-- In a table WITHOUT ROWID, SQLite 3.40 looks for a column that stands before one of the
-- key in the wrong place when it checks the file, and says that it is NULL.

ALTER TABLE bookmarks RENAME TO bookmarks_of_version_3;

CREATE TABLE bookmarks (                   -- what people marked, while it ran or later
  session            INTEGER NOT NULL REFERENCES sessions,
  t_ns               INTEGER NOT NULL,     -- session time
  made_ns            INTEGER NOT NULL,     -- Unix time
  text               TEXT NOT NULL,
  PRIMARY KEY (session, t_ns, made_ns)
) STRICT, WITHOUT ROWID;

INSERT INTO bookmarks (session, t_ns, made_ns, text)
SELECT session, t_ns, made_ns, text FROM bookmarks_of_version_3;

DROP TABLE bookmarks_of_version_3;

ALTER TABLE client_requests DROP COLUMN e2el_s;
ALTER TABLE client_requests DROP COLUMN tpot_s;
ALTER TABLE client_requests ADD COLUMN    -- of those that succeeded
  e2el_s             REAL AS (CASE WHEN failure IS NULL THEN
                       (last_token_ns - intended_ns) / 1e9 END) VIRTUAL;
ALTER TABLE client_requests ADD COLUMN    -- likewise, without the first chunk's tokens
  tpot_s             REAL AS (CASE WHEN failure IS NULL THEN
                       (last_token_ns - first_token_ns) / 1e9
                       / nullif(max(output_tokens - coalesce(
                           nullif(first_chunk_tokens, 0), 1), 0), 0) END) VIRTUAL;
