"""RPC stubs to values: NDR and NDR64, little- and big-endian.

Two decoders read the same method tables: the column decoder (``stub_decoder.py``, ``call_decoder.py``) reads Arrow
columns with numpy, the ``single_*`` modules read one stub in plain Python. Tests compare the two.
"""
