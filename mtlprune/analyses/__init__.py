"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

ANALYSES = {"smoothing": "smoothing", "probe": "probes"}
"""Command of ``mtlprune analyze`` → package here whose ANALYSIS is a record, in the order of display."""
