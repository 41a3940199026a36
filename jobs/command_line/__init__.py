"""What commands share: their options, the report of a failure, and the Java process of a local session."""
