"""etude: a post-training stack for coding agents. Importing it loads no torch."""

__version__ = "0.1.0"
