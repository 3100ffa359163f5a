"""How the pages' templates are read: texts of models and repositories are data, so they are escaped and made visible.

Not here: what is on a page (report.py, task_page.py).
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from etude.studio.text import plain, visible


def environment_for_pages() -> Environment:
    environment = Environment(
        loader=PackageLoader("etude.studio"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(str(value)),
    )
    environment.filters["attribute"] = plain
    return environment
