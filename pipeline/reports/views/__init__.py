"""SQL views that answer the 28 questions."""
