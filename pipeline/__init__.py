"""DataFrame in, DataFrame out: one module per stage; stages meet in tables, not in imports."""
