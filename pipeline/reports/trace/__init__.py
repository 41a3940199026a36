"""Timeline of one message: every known event of it, ordered by time."""
