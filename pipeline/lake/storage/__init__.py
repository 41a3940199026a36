"""What stores tables: Delta's log, data files, and commits by delta-rs or by Spark."""
