"""The story of one message: every event that is known of it, in order of time."""
