"""The exact meaning of all arithmetic, in plain Python: the reference of the fast paths and the contract."""
