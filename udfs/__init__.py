"""Bytes in, values out: decoders on the standard library, numpy and pyarrow. No Spark."""
