"""SQL queries with named inputs: what they are, and who answers them."""
