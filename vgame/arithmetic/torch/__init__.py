"""The arithmetic as torch operations, on any device. Files with the same name in numba/ and triton/ are their twins."""
