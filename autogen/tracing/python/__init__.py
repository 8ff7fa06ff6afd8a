"""Python around the ops of a loss: the numbers it is shown while it is traced, what it says, and what it keeps."""
