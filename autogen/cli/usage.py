"""What is wrong with a command, for its user."""


class UsageError(Exception):
    """A command that cannot be done as it was given; the message says what is wrong and what to do."""
