"""Layer tables of models: compute, memory and traffic of each layer."""
