"""The paper's evaluation, reproduced: trains what its figures compare, draws them, and judges its claims."""
