"""What captures show of connections in other captures, whichever was read first."""
