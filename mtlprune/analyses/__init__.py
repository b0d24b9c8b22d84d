"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

ANALYSES = {"smoothing": "smoothing", "claims": "claims"}
"""Command of ``mtlprune analyze`` → package here whose ANALYSIS is a record, in the order of display."""
COMMANDS = {"claims"}
"""Those of them whose command is not of ``mtlprune analyze`` but stands by itself: ``mtlprune overlap``."""
