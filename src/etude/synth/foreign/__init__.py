"""Feature deletion in repositories that are not Python, through an adapter of languages/: no file here knows a language."""
