"""The arithmetic as compiled loops, on a CPU. Files with the same name in torch/ and triton/ are their twins."""
