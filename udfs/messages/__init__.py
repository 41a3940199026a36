"""MSMQ UserMessage packets ([MS-MQMQ] 2.2.20) and the headers that RemoteRead adds ([MS-MQRR] 2.2.5) to values.

Two independent decoders: ``message_decoder.py`` for Arrow columns, ``single_message.py`` for one packet.
"""
