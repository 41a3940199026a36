"""MSMQ UserMessage packets ([MS-MQMQ] 2.2.20) and the headers that RemoteRead adds ([MS-MQRR] 2.2.5) to values.

``message_decoder.py`` decodes Arrow columns. Tests compare it with a decoder of one packet (tests/messages).
"""
