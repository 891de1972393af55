"""The places where runs are trained: this process, several processes, or jobs of a Slurm cluster."""
