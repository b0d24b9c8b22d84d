"""Masked-language-model training, watched: when does attention become syntactic, and what if it may not?"""
