"""Times of a chain as text."""

from __future__ import annotations

from datetime import datetime


def countdown(seconds: int | None) -> str:
    """Hours, minutes, seconds; "over" below zero, empty for None."""
    if seconds is None:
        return ""
    if seconds < 0:
        return "over"
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def local_time(second: int) -> str:
    """A Unix time in seconds as date and time in this machine's time zone."""
    return datetime.fromtimestamp(second).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
