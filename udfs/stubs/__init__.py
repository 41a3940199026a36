"""Stubs of RPC calls, in NDR and NDR64, little and big endian, decoded a column at a time."""
