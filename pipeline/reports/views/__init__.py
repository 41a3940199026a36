"""SQL views that answer the 25 questions."""
