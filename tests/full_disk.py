"""A disk that is full, as a program sees it: ``os.fsync`` fails."""

import errno
import os
from contextlib import contextmanager


@contextmanager
def room_for(files, monkeypatch):
    """Let so many more files be written within the block."""
    sync, left = os.fsync, list(range(files))

    def fsync(descriptor):
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        sync(descriptor)

    with monkeypatch.context() as once:
        once.setattr(os, "fsync", fsync)
        yield
