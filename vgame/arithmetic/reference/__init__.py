"""The exact meaning of all arithmetic, in plain Python: the truth that the fast paths and the contract follow."""
