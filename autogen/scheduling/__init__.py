"""From expressions to kernels: what is computed in which launch, and what forward keeps for backward."""
