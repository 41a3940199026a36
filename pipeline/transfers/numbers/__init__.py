"""Which number each packet of a session has, by which clock it was sent, and what acknowledges it. No Spark."""
