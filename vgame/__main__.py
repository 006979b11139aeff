"""`python -m vgame`, the module that torchrun starts."""

from vgame.cli.commands import main

if __name__ == "__main__":
    main()
