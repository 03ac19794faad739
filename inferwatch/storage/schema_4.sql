-- Schema version 4: what a client's answers told of themselves; see schema_1.sql.

ALTER TABLE client_requests ADD COLUMN turn INTEGER;  -- of its conversation, from 1

ALTER TABLE client_requests ADD COLUMN first_content_ns INTEGER;  -- after reasoning: the
                                                      -- first chunk of the answer itself
ALTER TABLE client_requests ADD COLUMN first_chunk_tokens INTEGER;  -- where the server
                                                      -- counts tokens in each chunk
ALTER TABLE client_requests ADD COLUMN server_queue_ns INTEGER;    -- as the answer itself
ALTER TABLE client_requests ADD COLUMN server_prefill_ns INTEGER;  -- said: vLLM's
ALTER TABLE client_requests ADD COLUMN server_decode_ns INTEGER;   -- per-request metrics
