"""Playing the game: trainer, auditor, their view of a claim, the trees of both."""
