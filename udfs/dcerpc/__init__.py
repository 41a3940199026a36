"""DCE/RPC on the wire: PDU headers, bind PDUs, the MSMQ interfaces, endpoint-mapper towers."""
