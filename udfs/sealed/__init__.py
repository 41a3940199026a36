"""Opening sealed traffic with the keys of its owner: handshakes, security contexts, and the PDUs they protect."""
