"""SQL views that answer the 27 questions."""
