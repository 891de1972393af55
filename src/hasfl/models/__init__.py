"""Models as chains of layers: three networks of hasfl, any torch module of a user, and the costs of layers.

A model can be cut between any two neighbouring layers.
"""
