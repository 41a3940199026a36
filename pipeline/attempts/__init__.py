"""Receive attempts, queue operations, opened queues, and the handles that they use."""
