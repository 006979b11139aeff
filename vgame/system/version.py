"""The version of vgame. If two machines that work together have different sources, one of them reports it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

__version__ = "0.1.0"  # read by pyproject.toml


@cache
def sources() -> str:
    """Version, and the first 8 hex digits of a hash over all modules of the package."""
    package, told = Path(__file__).parents[1], sha256()
    for path in sorted(package.rglob("*.py")):
        told.update(f"{path.relative_to(package).as_posix()}\n".encode() + sha256(path.read_bytes()).digest())
    return f"{__version__} ({told.hexdigest()[:8]})"
