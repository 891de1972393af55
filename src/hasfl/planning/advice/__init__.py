"""Advice about a plan: what an upgrade is worth (--why), what a wrong constant costs (--sensitivity)."""
