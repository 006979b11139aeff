"""Jobs: the file that a person writes, the bundle that all parties hold, the terms that are safe for it."""
