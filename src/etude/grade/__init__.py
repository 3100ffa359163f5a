"""From a diff to a verdict: hidden tests, in a fresh sandbox, that code under test can neither see before nor talk into passing."""
