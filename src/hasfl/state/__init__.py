"""The state of a training: tensors, the split into private and common layers, samples, random numbers."""
