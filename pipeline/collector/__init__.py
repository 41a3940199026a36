"""The collector: a qmmgmt client that asks queue managers about themselves and their queues. No Spark, no tables."""
