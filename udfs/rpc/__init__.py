"""Connection-oriented DCE/RPC over TCP: interfaces, PDUs, binds and calls ([C706] 12, [MS-RPCE] 2.2.2)."""
