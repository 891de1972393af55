"""Pages for people: one HTML file each, which opens from a disk and needs no network."""
