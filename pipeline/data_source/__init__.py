"""Captures as a Spark data source, without a lake."""
