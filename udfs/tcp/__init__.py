"""TCP: packet headers to segments, segments to connections, segments of a connection to ordered byte streams."""
