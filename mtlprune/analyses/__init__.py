"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

from mtlprune.io.plugins import Registry

_OURS = {
    "gradients": "gradients",
    "smoothing": "smoothing",
    "dissect": "dissection",
    "syntax": "syntax",
    "degeneration": "degeneration",
    "breaks": "breaks",
    "cross": "cross",
    "roles": "roles",
    "exchange": "exchange",
    "treatments": "treatments",
    "claims": "claims",
    "probe": "probes",
}
"""Command of ``mtlprune analyze`` → package here whose ANALYSIS is a record, in the order of display."""
ANALYSES = Registry(_OURS, "mtlprune.analyses", lambda point: point.name)
"""The same with those of installed packages, whose entry point is a package such as those here; command and name are
the entry point's."""
COMMANDS = {"claims", "probe"}
"""Those of them that are no command of ``mtlprune analyze`` but one by itself: ``mtlprune claims``."""
