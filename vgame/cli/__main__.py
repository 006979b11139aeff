"""`python -m vgame.cli`: the command `vgame`."""

from vgame.cli.commands import main

main()
