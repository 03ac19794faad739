-- Schema version 14: what decides the length of answers, when the last token was handed
-- over, and why prompts missed the prefix cache; see schema_1.sql and schema_9.sql.

ALTER TABLE requests ADD COLUMN top_p        REAL;
ALTER TABLE requests ADD COLUMN processed_ns INTEGER;  -- front end: the last outputs were
                                          -- detokenised and in the client's stream;
                                          -- finished_ns is when they had reached it

-- prompt_blocks.hashes holds "plain", too: hashes of the first blocks by themselves.
ALTER TABLE prompt_blocks ADD COLUMN salt          INTEGER;  -- hash of the cache salt
ALTER TABLE prompt_blocks ADD COLUMN prompt_tokens INTEGER;
