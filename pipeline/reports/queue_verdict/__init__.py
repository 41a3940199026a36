"""The verdict for a queue: where it is, how it is, why, and what to do."""
