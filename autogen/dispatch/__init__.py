"""Decide how a call of a decorated loss runs: in torch, on handwritten kernels, or by way of Dynamo."""
