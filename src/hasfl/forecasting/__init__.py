"""When a training will reach its goal, and what its learning curve says of the noise."""
