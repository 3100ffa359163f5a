"""The adapter of Java: languages/protocol.py's functions, from the files of this folder.

Not here: any of the work.
"""

from etude.languages.java.code import read, signature, stub, trace
from etude.languages.java.cut import remove, remove_tests
from etude.languages.java.environment import make_environment, runtime
from etude.languages.java.launch import import_launch, launch
from etude.languages.java.project import discover, products

__all__ = [
    "discover", "import_launch", "launch", "make_environment", "products", "read", "remove", "remove_tests", "runtime",
    "signature", "stub", "trace",
]  # fmt: skip
