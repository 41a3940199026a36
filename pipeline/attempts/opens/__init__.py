"""Opened queues: until when they were open, and who blocked whom."""
