"""Strategies: who gets which batch size and which cut."""
