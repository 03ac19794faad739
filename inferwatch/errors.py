"""The errors of inferwatch as a tree; the command line maps them to exit statuses.

InferwatchError
├── UsageError         the user asked for something that cannot be   (exit 2)
├── OutputError        what is printed cannot be written             (exit 2)
├── SourceError        the source was lost or never came             (exit 3)
└── StorageError       the record cannot be opened, read or written  (exit 2)
    ├── NewerSchemaError
    ├── ReadFailedError
    ├── NoSuchSessionError
    └── SessionDeletedError
"""


class InferwatchError(Exception):
    """A failure whose message is fit to show and says what to do next."""

    exit_status = 1


class UsageError(InferwatchError):
    """The user asked for something that cannot be done as asked."""

    exit_status = 2


class OutputError(InferwatchError):
    """The output cannot be written: the disk is full, or its reader has gone."""

    exit_status = 2

    def __init__(self, message: str, *, nobody_reads: bool) -> None:
        super().__init__(message)
        self.nobody_reads = nobody_reads


class SourceError(InferwatchError):
    """The engine was lost, or never came."""

    exit_status = 3


class StorageError(InferwatchError):
    """The record cannot be opened, read or written."""

    exit_status = 2


class NewerSchemaError(StorageError):
    """The file was written by a newer inferwatch."""


class ReadFailedError(StorageError):
    """Reading failed, which tells nothing of what is in the file: it may yet succeed.

    The disk failed, memory was short, or the process that read was ended.
    """


class NoSuchSessionError(StorageError):
    """No session has that name, id or prefix."""


class SessionDeletedError(StorageError):
    """A session that is being recorded was deleted by another program."""
