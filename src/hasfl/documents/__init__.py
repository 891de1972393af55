"""Files that people and other programs write: scenarios, problems, layer tables, traces of rates."""
