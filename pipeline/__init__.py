"""From captures and snapshots to answers: one room for each subject (docs/internals/architecture.md)."""
