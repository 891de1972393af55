"""Training on real machines: the parties, their messages, gRPC streams with mutual TLS, and workers."""
