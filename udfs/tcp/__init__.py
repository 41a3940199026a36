"""From packets to TCP streams: headers, flows, reassembly."""
