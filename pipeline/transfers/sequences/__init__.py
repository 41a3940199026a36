"""Exactly-once sequences of messages on their way, gold.transfer_sequences: numbers, order acks, stalls."""
