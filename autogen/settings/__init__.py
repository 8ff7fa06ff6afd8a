"""What a user sets: the options of a decorated loss, and the policy by which it runs on kernels or in torch."""
