"""Rules over several sessions of a hop, from one queue manager to another."""
