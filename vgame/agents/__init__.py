"""Roles as processes, which connect, compute, play, wait and retry; and the state on chain, shown to people and
programs."""
