"""Analyses of encoders, heads and runs. Each analysis is a package with a record (see ``analysis.py``).

The packages in ``heads`` concern attention heads, those in ``costs`` the costs of joint training, and those in
``vectors`` hidden states. ``harness`` is no analysis: it loads the runs and encoders that analyses measure.
"""

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
"""Name of an analysis → import path of its package below ``mtlprune.analyses``, in the order of display. The attribute
``ANALYSIS`` of the package is the record. Analyses of installed packages follow, with the name of their entry point,
which refers to a package of the same form."""
