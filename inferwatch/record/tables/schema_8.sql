-- Schema version 8: what GPUs and hosts do; see schema_1.sql and schema_2.sql.

CREATE TABLE gpu_samples (                 -- what a GPU did; its UUID is its source
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  span_ns            INTEGER,              -- what averages cover, up to t_ns
  via                TEXT NOT NULL,        -- gpm, dcgm; nvml: there are no averages
  dram_active        REAL,                 -- 0-1; from here on averages
  peak_bytes_per_s   REAL,                 -- of which that is the share
  sm_active          REAL,                 -- 0-1
  sm_occupancy       REAL,                 -- 0-1
  tensor_active      REAL,                 -- 0-1
  pcie_tx_bytes_per_s   REAL,              -- from the GPU
  pcie_rx_bytes_per_s   REAL,
  nvlink_tx_bytes_per_s REAL,
  nvlink_rx_bytes_per_s REAL,
  gpu_busy           REAL,                 -- share of time, not of capacity
  memory_busy        REAL,                 -- likewise: no bandwidth
  power_w            REAL,                 -- from here on as of t_ns
  power_limit_w      REAL,
  sm_clock_mhz       INTEGER,
  memory_clock_mhz   INTEGER,
  throttle_reasons   INTEGER,              -- NVML's bits of clocks event reasons
  temperature_c      INTEGER,
  memory_temperature_c  INTEGER,
  memory_used_bytes  INTEGER,              -- without what the driver reserves
  memory_reserved_bytes INTEGER,
  energy_mj          INTEGER,              -- from here on counters
  throttled_ns       TEXT NOT NULL,        -- JSON object, by reason
  ecc_corrected      INTEGER,
  ecc_uncorrected    INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpu_processes (               -- who used a GPU
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,
  t_ns               INTEGER NOT NULL,
  memory_bytes       TEXT NOT NULL,        -- JSON object, by process id
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

CREATE TABLE hosts (
  session            INTEGER NOT NULL REFERENCES sessions,
  ordinal            INTEGER NOT NULL,
  source             INTEGER NOT NULL,     -- empty name: where inferwatch ran
  t_ns               INTEGER NOT NULL,
  name               TEXT NOT NULL,
  cpu                TEXT,
  cores              INTEGER,
  memory_bytes       INTEGER,
  PRIMARY KEY (session, ordinal)
) STRICT, WITHOUT ROWID;

ALTER TABLE host_samples ADD COLUMN run_queue INTEGER; -- threads that ran or waited
ALTER TABLE host_samples ADD COLUMN memory_used_bytes INTEGER;
ALTER TABLE host_processes ADD COLUMN threads INTEGER;
ALTER TABLE host_processes ADD COLUMN throttled_s REAL; -- by its control group's quota

ALTER TABLE gpus ADD COLUMN lost_because   TEXT;       -- it was there and is gone
ALTER TABLE gpus ADD COLUMN host           TEXT;       -- if not inferwatch's
ALTER TABLE gpus ADD COLUMN number         INTEGER;    -- as the driver counts
ALTER TABLE gpus ADD COLUMN pci_bus_id     TEXT;
ALTER TABLE gpus ADD COLUMN architecture   TEXT;
ALTER TABLE gpus ADD COLUMN driver         TEXT;
ALTER TABLE gpus ADD COLUMN memory_bytes   INTEGER;
ALTER TABLE gpus ADD COLUMN memory_bus_bits INTEGER;
ALTER TABLE gpus ADD COLUMN max_sm_clock_mhz INTEGER;
ALTER TABLE gpus ADD COLUMN max_memory_clock_mhz INTEGER;
ALTER TABLE gpus ADD COLUMN peak_bytes_per_s REAL;
ALTER TABLE gpus ADD COLUMN peak_from      TEXT;
ALTER TABLE gpus ADD COLUMN sheet_bytes_per_s REAL;
ALTER TABLE gpus ADD COLUMN parent_uuid    TEXT;       -- of a MIG slice
ALTER TABLE gpus ADD COLUMN profile        TEXT;
ALTER TABLE gpus ADD COLUMN missing        TEXT NOT NULL DEFAULT '{}'; -- JSON object

ALTER TABLE engines ADD COLUMN gpus        TEXT NOT NULL DEFAULT '[]'; -- JSON, UUIDs
ALTER TABLE engines ADD COLUMN weight_bytes INTEGER;
ALTER TABLE engines ADD COLUMN kv_bytes_per_token INTEGER;

ALTER TABLE totals ADD COLUMN loop_lag_max_ns INTEGER; -- of an API server, since the
                                                       -- totals before
