"""What several screens use: charts, tables, the header, the time line."""
