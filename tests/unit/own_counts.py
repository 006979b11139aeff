"""A module of a user with a counter, imported inside losses."""

step = 0
seen: list[int] = []
