"""Tools that do not depend on training: threads, compiled loops, atomic files, progress."""
