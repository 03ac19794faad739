-- Schema version 6: what the cap on requests in flight held back, and how busy the host
-- was as a whole; see schema_1.sql and schema_2.sql.

ALTER TABLE client_samples ADD COLUMN
  held_back          INTEGER;              -- NULL where the generator did not tell

ALTER TABLE host_samples ADD COLUMN cores  INTEGER;   -- that inferwatch may use
ALTER TABLE host_samples ADD COLUMN busy_s REAL;      -- what all processes have used of
                                                      -- them since the host started
