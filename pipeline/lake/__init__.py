"""The lake: declared tables in Delta, changes, incremental updates, the lease, recovery, maintenance."""
