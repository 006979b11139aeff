"""The command line: it parses, calls and prints."""

from vgame.cli.commands import app, main

__all__ = ["app", "main"]
