"""Analyses of what joint training costs. They read scores of finished runs and no attention heads."""
