"""The commands of a deployment: keys, servers, devices, runs on a fleet."""
