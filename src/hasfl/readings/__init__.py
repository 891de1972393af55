"""What training shows of the constants that plans rest on."""
