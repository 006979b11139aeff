"""A module of a user with a counter, imported inside losses."""

import numpy as np

step = 0
number = np.int64(0)
pair = ("count", 0)
seen: list[int] = []
