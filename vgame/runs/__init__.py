"""A run: its folder, training and auditing without a chain, its history for disputes, the comparison of two runs."""
