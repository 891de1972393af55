"""Where runs are carried out: in this process, in several processes, or as jobs of a cluster."""
