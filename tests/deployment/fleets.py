"""A whole fleet in one process with real sockets and TLS, but without Flower."""


