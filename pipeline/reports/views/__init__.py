"""The 25 questions as SQL views over the tables."""
