"""What became of each message that was read."""
