"""A device: its samples and its client part."""
