"""Choose the launch parameters of a kernel for the sizes of a call."""
