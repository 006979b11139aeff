"""`python -m vgame.cli`: the same as `vgame`."""

from vgame.cli.commands import main

main()
