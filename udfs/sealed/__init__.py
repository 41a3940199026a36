"""Decrypt and verify protected RPC traffic with its owner's keys: handshakes, security contexts, protected PDUs."""
