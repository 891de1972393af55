"""How a round is computed on this machine: device by device, or for all devices at once."""
