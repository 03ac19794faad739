-- Schema version 12: how far drafts of speculative decoding were accepted; see
-- schema_1.sql and schema_2.sql.

ALTER TABLE steps ADD COLUMN drafts INTEGER; -- requests whose drafts were verified
ALTER TABLE steps ADD COLUMN accepted_by_position TEXT NOT NULL DEFAULT '[]'; -- JSON
