"""Benchmarks: `python -m benchmarks.NAME [--quick]`, each a table for people and one JSON line for programs.

Figures that README or docs report never come from --quick. Not here: assertions about speed in tests.
"""
