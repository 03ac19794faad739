-- Schema version 3: sessions are tagged, put away and marked; see schema_1.sql.

ALTER TABLE sessions ADD COLUMN tags TEXT NOT NULL DEFAULT '';  -- words, one space apart

ALTER TABLE sessions ADD COLUMN deleted_ns INTEGER;  -- Unix time at which it was put into
                                                     -- the bin; NULL: it is not there
ALTER TABLE sessions ADD COLUMN imported_from TEXT;  -- tool and file; NULL: we watched it

CREATE TABLE bookmarks (                   -- what people marked, while it ran or later
  session            INTEGER NOT NULL REFERENCES sessions,
  t_ns               INTEGER NOT NULL,     -- session time
  text               TEXT NOT NULL,
  made_ns            INTEGER NOT NULL,     -- Unix time
  PRIMARY KEY (session, t_ns, made_ns)
) STRICT, WITHOUT ROWID;
