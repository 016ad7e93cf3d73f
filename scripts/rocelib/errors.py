"""The two ways in which soft_roce gives up before a machine runs."""


class UsageError(Exception):
    """An argument is wrong; the message is for the person."""


class MissingError(Exception):
    """This host lacks something; the message names it and the command that brings it."""
