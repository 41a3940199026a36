"""Benchmarks of the reader, the decoders and the pipeline, compared with tshark, impacket and Delta."""
