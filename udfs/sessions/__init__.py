"""Packets of the binary protocol between queue managers ([MS-MQQB]): framing, rows, bodies, pings."""
