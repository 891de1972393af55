"""Flower: who is there, who may join, and the start of a run. Nothing else knows of Flower."""
