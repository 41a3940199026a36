"""Alert conditions, and the episodes in which they held."""
