"""The error of a command that was given wrongly."""


class UsageError(Exception):
    """A command that cannot be done as it was given; the message says what is wrong and what to do."""
