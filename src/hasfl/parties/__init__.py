"""What each party of a deployment computes: devices, the edge server, the fed server. No network here."""
