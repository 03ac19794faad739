-- Schema version 13: what threads did in a stall, how a start went, and what servers tell
-- of their steps; see schema_1.sql and schema_2.sql.

-- Stalls.


-- Start-up and phases of requests.


-- Steps and KV events that servers tell.

ALTER TABLE steps ADD COLUMN memberless     INTEGER NOT NULL DEFAULT 0; -- 1: published
                                  -- by the server, without who was in it: output_tokens
                                  -- is 0, bound_by tells only whether any waited
ALTER TABLE steps ADD COLUMN context_tokens INTEGER; -- in the KV cache already
ALTER TABLE kv_cache_events ADD COLUMN medium TEXT; -- tier, CPU or DISK; NULL: the GPU

-- Configuration.

