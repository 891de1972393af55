"""Who decides: a batch rule and a cut rule under one name."""
