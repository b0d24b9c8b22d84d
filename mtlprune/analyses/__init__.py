"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

ANALYSES = {
    "gradients": "gradients",
    "smoothing": "smoothing",
    "dissect": "dissection",
    "syntax": "syntax",
    "degeneration": "degeneration",
    "breaks": "breaks",
    "overlap": "claims",
    "probe": "probes",
}
"""Command of ``mtlprune analyze`` → package here whose ANALYSIS is a record, in the order of display."""
COMMANDS = {"overlap", "probe"}
"""Those of them that are no command of ``mtlprune analyze`` but one by itself: ``mtlprune overlap``."""
