"""Languages: what a repository that is not Python needs, one folder each, behind one protocol (protocol.py)."""
