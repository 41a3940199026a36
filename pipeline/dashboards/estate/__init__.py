"""The report on an estate: one HTML page on its queues, flows and machines, and on what a move away would need."""
