"""What the package can do, shown by running it."""
