"""Data sets in files: published ones, one file a device, and those that Hugging Face `datasets` saved."""
