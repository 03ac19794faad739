-- Schema version 9: who holds the KV cache, and by what requests can be grouped; see
-- schema_1.sql and schema_2.sql.

ALTER TABLE requests ADD COLUMN lora            TEXT;    -- adapter; NULL: the model
ALTER TABLE requests ADD COLUMN priority        INTEGER; -- lower goes first
ALTER TABLE requests ADD COLUMN header          TEXT;    -- of the one chosen to group by
ALTER TABLE requests ADD COLUMN external_tokens INTEGER; -- brought by a KV connector

CREATE TABLE block_maps (                  -- who holds which KV block; mostly changes
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  sequence           INTEGER NOT NULL,
  whole              INTEGER NOT NULL,     -- 1: all there is, not what changed
  num_blocks         INTEGER NOT NULL,     -- block ids are below this; 0 is never held
  cleared            INTEGER NOT NULL,     -- 1: all content was given up at once
  cost_ns            INTEGER,              -- on the engine's thread
  changes            BLOB NOT NULL,        -- zlib(JSON): holders, groups, kept, blocks,
                                           -- gone, cached, uncached; of blocks,
                                           -- cached, uncached the steps from one id
                                           -- to the next
  PRIMARY KEY (session, ordinal)
) STRICT;

CREATE TABLE prompt_blocks (               -- full blocks of a request by their content
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  rank               INTEGER NOT NULL,
  member             INTEGER NOT NULL,     -- the request, as steps name it
  prompt_blocks      INTEGER NOT NULL,     -- were looked up in the prefix cache
  total_blocks       INTEGER NOT NULL,     -- with those of the output
  one_in             INTEGER NOT NULL,     -- only hashes divisible by it are here
  block_tokens       INTEGER,
  hashes             BLOB NOT NULL,        -- zlib(JSON): hashes, places
  PRIMARY KEY (session, ordinal)
) STRICT;
