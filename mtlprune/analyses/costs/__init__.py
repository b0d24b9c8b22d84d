"""Analyses of what joint training costs, which read finished runs and no heads."""
