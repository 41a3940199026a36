"""Hops between queue managers: which are one, who is at their ends, and where packets of them may be missing."""
