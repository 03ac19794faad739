-- Schema version 5: bookmarks begin with their key; see schema_1.sql.
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
