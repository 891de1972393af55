"""The fed server: it plans, averages, and leads the other parties through a training."""
