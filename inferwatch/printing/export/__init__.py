"""Sessions as files for other programs: tables, traces, pages."""
