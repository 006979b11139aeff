"""A live page of jobs and disputes: the chain's data as one state, served on loopback."""
