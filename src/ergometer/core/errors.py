"""Every error that a user can cause.

ErgoError            1  the measurement did not succeed
├── UsageError       2  the request itself is wrong
├── UnavailableError 3  a plug-in, extra or permission is missing here, or an engine cannot do this
└── StoreError       4  the store or a file in it cannot be used
"""


class ErgoError(Exception):
    """One sentence that says what is wrong and names the remedy."""

    exit_code = 1


class UsageError(ErgoError):
    exit_code = 2


class UnavailableError(ErgoError):
    exit_code = 3


class StoreError(ErgoError):
    exit_code = 4
