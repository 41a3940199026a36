"""Tables of folders: stored by delta-rs, queried by DuckDB."""
