"""The chain: a connection and an account, the typed contract, its events, the embedded chain, and the compiled
contracts."""
