"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

from mtlprune.io.plugins import Registry

_OURS = (
    *("probes", "gradients", "cross", "curve", "roles", "exchange", "scarcity"),
    *("treatments", "claims", "head", "heads", "speed"),
    *("smoothing", "dissection", "syntax", "degeneration"),
)
ANALYSES = Registry({name: name for name in _OURS}, "mtlprune.analyses", lambda point: point.name)
"""Names of the packages here whose ANALYSIS is a record, in the order of display, and of those of installed packages,
whose entry point is a package such as those here."""
