"""A page that shows jobs and disputes while they happen: what the chain says, as one state, served on loopback."""
