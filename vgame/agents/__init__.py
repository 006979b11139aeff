"""Roles as processes: they connect, compute, play, wait and retry; and what stands on chain, for people and
programs."""
