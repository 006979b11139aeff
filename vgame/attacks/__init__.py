"""Every way to cheat, each an honest role plus one named patch. The demonstration, the drills and the tests play the
same ones."""
