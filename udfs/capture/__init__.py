"""From the bytes of a capture file to RPC calls: containers, headers, TCP streams, and the reader over them."""
