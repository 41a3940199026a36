"""From capture files to bronze rows: read one capture, and merge connections that several captures contain."""
