"""Capture files: containers (pcap, pcapng), compression, where files lie."""
