"""All attacks, each an honest role plus one named patch. The demo, the drills and the tests play the same attacks."""
