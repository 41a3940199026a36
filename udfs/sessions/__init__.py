"""Packets of the binary protocol ([MS-MQQB]) between queue managers, TCP 1801."""
