"""DCE/RPC as on the wire: PDUs, binds, interfaces, towers."""
