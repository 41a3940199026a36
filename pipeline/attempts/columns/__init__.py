"""Calls of servers as columns: numpy arrays in which an index stands for a call."""
