"""When a training will reach its goal."""
