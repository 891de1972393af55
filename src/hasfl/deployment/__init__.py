"""The network between the parties of a deployment: frames, gRPC streams with mutual TLS, workers."""
