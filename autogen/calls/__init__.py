"""A call, taken apart: the tensors it is made with, and everything else that the loss may read, as a key."""
