"""What happens to a call of a decorated loss: policy, fast path, handwritten kernels, or capture by torch."""
