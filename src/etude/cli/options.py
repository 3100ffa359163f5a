"""Options that several verbs have.

Not here: verbs.
"""

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(negative=(), help="Print one JSON object instead of text.")]
