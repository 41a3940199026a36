"""Method calls that COM+ queued components record in message bodies, [MC-COMQC].

``body_decoder.py`` decodes Arrow columns. Tests compare it with a decoder of one body (tests/comqc).
"""
