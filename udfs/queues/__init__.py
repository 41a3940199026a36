"""Queue names: format names, path names and direct names, their normal form, and which of them name the same queue."""
