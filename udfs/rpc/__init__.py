"""Connection-oriented DCE/RPC over TCP: PDU framing, binds, call assembly, call rows ([C706] 12, [MS-RPCE] 2.2.2)."""
