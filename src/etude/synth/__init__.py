"""Repository -> tasks: fetch, discover, candidates, cut, check, write. Start reading at build.py.

Not here: the sandbox (sandbox/), running and grading tests (grade/).
"""
