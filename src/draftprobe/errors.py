"""The exceptions that draftprobe raises on purpose. They know no command and no exit code.

    DraftprobeError
    └── InputError      something the user gave is not what is needed

A finding about a drafter is never an exception: it is a value.
"""


class DraftprobeError(Exception):
    """Whatever draftprobe raises on purpose."""


class InputError(DraftprobeError):
    """Bad input; the message says what was expected, what was found, in which file, what to do."""
