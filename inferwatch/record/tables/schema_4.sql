-- Schema version 4: what a client's answers told of themselves; see schema_1.sql.

ALTER TABLE load_events ADD COLUMN users INTEGER;     -- of a closed loop
ALTER TABLE load_events ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;  -- on the way, by
                                                      -- somebody; else as planned
UPDATE load_events SET users = CAST(substr(text, 14) AS INTEGER)
 WHERE text LIKE 'closed loop, %';
UPDATE load_events SET changed = 1
 WHERE kind = 'rate' AND text LIKE '%, was %';

ALTER TABLE client_requests ADD COLUMN turn INTEGER;  -- of its conversation, from 1

ALTER TABLE client_requests ADD COLUMN first_content_ns INTEGER;  -- after reasoning: the
                                                      -- first chunk of the answer itself
ALTER TABLE client_requests ADD COLUMN first_chunk_tokens INTEGER;  -- where the server
                                                      -- counts tokens in each chunk
ALTER TABLE client_requests ADD COLUMN server_queue_ns INTEGER;    -- as the answer itself
ALTER TABLE client_requests ADD COLUMN server_prefill_ns INTEGER;  -- said: vLLM's
ALTER TABLE client_requests ADD COLUMN server_decode_ns INTEGER;   -- per-request metrics
