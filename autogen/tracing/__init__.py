"""Tracing: one call of a loss → one joint `torch.fx` graph of the loss and its gradients.

The loss runs once on fake tensors with symbolic sizes, then `torch.autograd.grad` runs on its result, and a
recorder below autograd writes down both. Every derivative is therefore torch's own: ties, clamps, norms at
zero, `no_grad`, `detach` and custom `autograd.Function`s included.

A trace holds for every call that passes its `guards`: the relations between sizes and strides that the code or
torch relied on.
"""
