"""What commands share: their options, the report of a failure, the Java process and the code of a session."""
