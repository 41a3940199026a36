"""Redaction, retention, erasure."""
