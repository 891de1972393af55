"""Models as chains of layers: three networks of hasfl, any torch module of the user, and what layers cost.

A model can be cut between any two neighbouring layers.
"""
