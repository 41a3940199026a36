"""Messages on their way between queue managers: what became of each on each hop (gold.message_transfers)."""
