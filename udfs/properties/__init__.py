"""Management properties of queues and queue managers ([MS-MQMQ] 2.3.11, 2.3.12), captured or collected, to rows."""
