"""The chain: a connection and an account on it, the typed contract, its events, the embedded chain, the compiled
contracts."""
