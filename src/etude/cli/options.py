"""Options that several verbs have.

Not here: verbs.
"""

from typing import Annotated, Literal

from cyclopts import Parameter

Json = Annotated[bool, Parameter(negative=(), help="Print one JSON object instead of text.")]
Engine = Annotated[Literal["bubblewrap", "docker"], Parameter(help="What commands run in.")]
Image = Annotated[
    str,
    Parameter(help="Of docker: an image with python3 of the tasks' version, sh, tar, cat, sleep. (python:3.11-slim)", show_default=False),
]
