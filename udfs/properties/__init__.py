"""Management properties ([MS-MQMQ] 2.3.11, 2.3.12): of R_QMMgmtGetInfo on the wire, and as a collector wrote them."""
