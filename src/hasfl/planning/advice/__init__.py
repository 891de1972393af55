"""Advice about a plan: seconds that an upgrade saves (--why) or a wrong constant costs (--sensitivity)."""
