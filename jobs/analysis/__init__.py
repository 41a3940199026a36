"""Commands that only read, for people at a terminal."""
