"""Delta tables in folders of this machine, read and committed without a Spark job."""
