"""`python -m etude`."""

from etude.cli import main

main()
