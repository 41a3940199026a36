"""Notices: what people and other programs are told of alerts, and what they were told before."""
