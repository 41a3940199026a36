"""Snapshot collector: a qmmgmt client that queries queue managers and writes snapshot files. No Spark, no tables."""
