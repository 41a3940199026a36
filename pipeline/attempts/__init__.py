"""Receive attempts, queue operations, and the handles that they use."""
