"""What a party holds during training: layers, the split between devices and server, samples, randomness."""
