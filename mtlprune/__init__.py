"""mtlprune: which attention heads does each task claim?"""

__version__ = "0.1.0"
