"""One training step, executed by many processes: the same bits (docs/ranks.md)."""
