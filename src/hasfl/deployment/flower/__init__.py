"""Flower admits nodes, says which are online, and starts runs. Only this folder imports Flower."""
