"""Losses in graphs of `torch.compile`: as Dynamo traces them, as backends lower them, and as ops of torch."""
