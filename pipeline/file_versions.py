"""Telling versions of a file apart without reading it."""

import os

# The device and the inode of a file, its size, and when it was last written to, in nanoseconds.
Version = tuple[int, int, int, int]


def version_of(status: os.stat_result) -> Version:
    """Return the version of a file that the file system tells of."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
