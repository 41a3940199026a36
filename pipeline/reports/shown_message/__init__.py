"""One message as a person reads it: its headers, those of the application, and its body."""
