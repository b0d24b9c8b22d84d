"""Analyses of what encoders, heads and runs know. Each is a package with a record (analysis.py)."""

from mtlprune.io.plugins import Registry

_BUILT_IN = (
    "probes",
    *("heads.gradients", "heads.cross", "heads.curve", "heads.roles", "heads.exchange", "heads.scarcity"),
    "costs.equal_loss",
    *("heads.treatments", "heads.claims", "heads.head", "heads.heads", "heads.speed"),
    *("vectors.smoothing", "vectors.dissection", "vectors.syntax", "vectors.degeneration"),
)
ANALYSES = Registry(
    {path.rpartition(".")[2]: path for path in _BUILT_IN}, "mtlprune.analyses", lambda point: point.name
)
"""Name → the package here whose ANALYSIS is a record, in the order of display, and the same of installed packages,
whose entry point is a package such as those here. The folder ``heads`` holds what concerns attention heads, ``costs``
what joint training costs, ``vectors`` what concerns hidden states, ``harness`` how analyses reach runs and encoders."""
