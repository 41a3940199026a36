"""COM+ queued components: method calls recorded in message bodies, [MC-COMQC]."""
