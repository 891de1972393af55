"""What takes part in a training, for simulations and for parties on a network alike."""
