"""Packets that are evidence, from the captures of a lake, as one pcapng file for Wireshark."""
