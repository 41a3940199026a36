"""What names a queue: format names, path names, direct names; their normal form; which of them name the same queue."""
