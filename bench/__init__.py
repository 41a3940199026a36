"""``make bench``: how fast the capture reader is, beside tshark and beside the limit of the platform."""
