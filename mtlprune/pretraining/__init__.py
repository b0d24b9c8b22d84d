"""Pretraining by masked-language modelling, with measurements of syntactic attention during training.

It repeats the experiments of Chen et al. (2024): when attention becomes syntactic, and what a penalty on syntactic
attention changes (docs/methods/pretraining.md).
"""
