"""Playing the game: the trainer, the auditor, the auditor's view of a claim, and the trees of both sides."""
