"""Strategies: which device gets which batch size and which cut, and when plans change."""
