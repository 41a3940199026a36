"""Queue histories and exactly-once state, as queue managers report them."""
