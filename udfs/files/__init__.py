"""Capture files as stored: file systems, compression, pcap and pcapng, and the fingerprints of their content."""
