"""The trained state for the reward: ciphertext first, then the key, and a contract that decides complaints
(docs/delivery.md)."""
