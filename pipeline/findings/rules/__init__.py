"""The conformance rules themselves, a module for each protocol or subject."""
