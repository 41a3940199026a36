"""Method calls that COM+ queued components record in message bodies, [MC-COMQC].

Two independent decoders: ``body_decoder.py`` for Arrow columns, ``single_body.py`` for one body.
"""
