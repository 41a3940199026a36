"""Conformance rules, evaluated over calls and queues."""
