"""What computes: Spark's sessions and their settings, tasks, groups of rows, frames."""
