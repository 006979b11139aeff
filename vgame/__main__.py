"""`python -m vgame`, and what torchrun starts."""

from vgame.cli.commands import main

if __name__ == "__main__":
    main()
