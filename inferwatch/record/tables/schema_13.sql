-- Schema version 13: what threads did in a stall, how a start went, and what servers tell
-- of their steps; see schema_1.sql and schema_2.sql.

-- Stalls.


-- Start-up and phases of requests.


-- Steps and KV events that servers tell.


-- Configuration.

