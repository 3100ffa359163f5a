"""Models: loading, tiny ones for tests, the attention function that all of them use."""
