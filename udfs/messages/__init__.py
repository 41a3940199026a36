"""Message packets: the header chain of a UserMessage and what RemoteRead puts around it, decoded a column at a time."""
