"""The engines that compute a round on this machine: for one device after the other, or for all at once."""
