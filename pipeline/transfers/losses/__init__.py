"""What captures lack of sessions: holes in their streams, and the packets that may be missing there."""
