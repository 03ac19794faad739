-- Schema version 12: why requests are deferred, and how long
-- compilations take; see schema_1.sql and schema_2.sql.

ALTER TABLE steps ADD COLUMN deferred_by     TEXT;    -- grammar, KV transfer, adapter,
                                  -- encoder, streaming input, held prefill
ALTER TABLE steps ADD COLUMN deferred        INTEGER; -- waiting requests passed over
ALTER TABLE steps ADD COLUMN deferred_before TEXT;    -- why they waited before the step,
                                                      -- while none ran

ALTER TABLE notes ADD COLUMN duration_ns INTEGER; -- of compilations, where known
