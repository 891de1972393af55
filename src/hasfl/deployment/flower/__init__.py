"""Flower: who is there, who may join, and the start of a run. Nothing else imports flwr or starts its programs."""
