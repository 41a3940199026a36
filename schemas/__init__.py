"""What the tables are: names, columns, types, units. Nothing here reads, writes or computes."""
