"""Examples of what the package can do, each of which runs."""
