"""The command line: it parses, calls and prints."""

from vgame.cli.commands import main
from vgame.cli.options import app

__all__ = ["app", "main"]
