"""Answers at a terminal: summary, the 25 questions, one message's story, packets."""
