"""The arithmetic as Triton kernels, for CUDA tensors. Nothing here is imported where they do not run (gate.py)."""
