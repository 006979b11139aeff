"""Jobs: the file that a person writes, the bundle that everybody holds, the terms that are safe for it."""
