"""Bronze to silver: decoded calls and messages, hosts, queue aliases."""
