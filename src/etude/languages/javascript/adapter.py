"""The adapter of JavaScript and TypeScript: languages/protocol.py's functions, from the files of this folder.

Not here: any of the work.
"""

from etude.languages.javascript.code import read, signature, stub, trace
from etude.languages.javascript.cut import remove, remove_tests
from etude.languages.javascript.environment import make_environment, runtime
from etude.languages.javascript.launch import import_launch, launch
from etude.languages.javascript.project import discover, products

__all__ = [
    "discover", "import_launch", "launch", "make_environment", "products", "read", "remove", "remove_tests", "runtime",
    "signature", "stub", "trace",
]  # fmt: skip
