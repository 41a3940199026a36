"""Calls, connections and handles as objects: what one call says, and from when to when a handle stood for a queue."""
