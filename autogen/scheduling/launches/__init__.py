"""Launches: results → the kernels that compute them, and how each of these walks its axes."""
