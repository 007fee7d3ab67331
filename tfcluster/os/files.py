"""Files: replaced atomically, locked by a process, freed in the middle, and watched for changes by inotify(7)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfcluster.os import libc


def write_atomically(path: Path, data: bytes, *, durable: bool = False, is_shared: bool = False) -> None:
    """Replace a file by one that only this user can access: a reader sees either the old content or the new one.

    With `durable`, the data is synced to the disk first, so that a power loss leaves no empty file. With `is_shared`,
    other processes may replace the file at the same time. If an OSError is raised, the file is unchanged.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new" if is_shared else f"{path.name}.new")
    try:
        write_file(new, data, durable=durable)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):  # a partial file, for example on a full disk, has no use
            os.unlink(new)
        raise


def write_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a whole file that only this user can access, whatever is at its path; an OSError may leave a part of it."""
    remove(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        if durable:
            os.fsync(fd)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of some data; a disk that is almost full accepts only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def remove(path: Path) -> None:
    """Remove what is at a path, a folder too, if there is anything."""
    remove_unless_file(path)
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove_unless_file(path: Path) -> None:
    """Remove what is in the place of a file and is not a regular file: opening a named pipe would block."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            import shutil  # rarely needed, and slow to import

            shutil.rmtree(path)
        elif not stat.S_ISREG(mode):
            path.unlink()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file that something else may have replaced. Raises ValueError if it is larger, or not a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait for a writer
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > max_bytes:
            raise ValueError(f"{status.st_size} bytes long, it has at most {max_bytes}")
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def read_own_file(path: Path, max_bytes: int) -> bytes:
    """Read a file as `read_file` does; raises PermissionError if another account has made it, or the link to it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.getuid():
            raise PermissionError(errno.EACCES, "another account has made it", str(path))
        return read_file(Path(f"/proc/self/fd/{fd}"), max_bytes)
    finally:
        os.close(fd)


class FileLock:
    """A lock file that this process has created and locked; see `acquire`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def acquire(cls, path: Path) -> FileLock | None:
        """Create and lock a file that only this user can access; return None if the lock is held, even by this process.

        Raises OSError if the file cannot be created, or something else at its path cannot be removed.
        """
        while True:
            remove_unless_file(path)
            lock = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            try:
                fcntl.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock._fd)
                return None
            except OSError:
                os.close(lock._fd)
                raise
            # The previous holder may have removed the file between this process's open and flock.
            if lock.is_in_place():
                return lock
            os.close(lock._fd)

    def is_in_place(self) -> bool:
        """Return whether the locked file is still the one that other processes open at the path."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def write(self, data: bytes) -> None:
        """Replace the content of the file; do nothing if the file has that content already."""
        if os.pread(self._fd, len(data) + 1, 0) == data:
            return
        os.pwrite(self._fd, data, 0)  # first, as on a full disk another file would get the block of an emptied one
        os.ftruncate(self._fd, len(data))

    def release(self) -> None:
        """Remove the file, unless another process has put its own file at the path, and release the lock."""
        if self.is_in_place():
            with suppress(OSError):  # the directory has become read-only: an unlocked file does no harm
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock without removing the file."""
        os.close(self._fd)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, so that two processes do not replace each other's sockets in it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # the file system does not support locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: The errors of file systems that cannot free a range of a file.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


def punch(fd: int, start: int, end: int) -> None:
    """Free a range of a file, zeroing partial blocks; raises OSError, in `UNSUPPORTED` if the file system never can."""
    libc.call("fallocate", fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start))


def first_data(fd: int, position: int) -> int:
    """Return the first position at or after `position` that is not in a hole of the file."""
    return _seek(fd, position, os.SEEK_DATA, position)


def first_hole(fd: int, position: int) -> int:
    """Return the first position at or after `position` that is in a hole of the file, or at its end."""
    return _seek(fd, position, os.SEEK_HOLE, None)


def _seek(fd: int, position: int, whence: int, without_holes: int | None) -> int:
    # Before the search: what is appended later is not in the hole. The file may have been truncated to less.
    size = max(position, os.fstat(fd).st_size)
    try:
        return os.lseek(fd, position, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole follows, or the file ends here
            return size
        if error.errno == errno.EINVAL:  # the file system does not support holes
            return size if without_holes is None else without_holes
        raise


#: What an `Inotify` tells of: what is written to a file or to those in a folder; that the file or folder itself was
#: unlinked or got another mode, was deleted, was moved.
IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800
#: What `Inotify.read` returns if events were lost, as too many had not been read: any folder may have changed.
OVERFLOW = -1
# struct inotify_event: watch descriptor, mask, cookie, length of the name that follows.
_EVENT = struct.Struct("=iIII")


class Inotify:
    """An inotify instance for some events of files or folders; raises OSError if there are too many."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._fd = libc.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor, which is readable after an event."""
        return self._fd

    def add(self, path: Path) -> int:
        """Watch a file or folder, or raise OSError; return the watch descriptor, the same if it is watched already."""
        return libc.call("inotify_add_watch", self._fd, os.fsencode(path), self._events)

    def remove(self, watch: int) -> None:
        """Stop watching a folder; do nothing if the folder has been deleted."""
        with suppress(OSError):
            libc.call("inotify_rm_watch", self._fd, watch)

    def read(self) -> set[int]:
        """Return the watch descriptors with events since the last call; do not block."""
        watches: set[int] = set()
        with suppress(BlockingIOError):
            while True:
                data = os.read(self._fd, 1 << 16)
                offset = 0
                while offset < len(data):
                    watch, _, _, length = _EVENT.unpack_from(data, offset)
                    watches.add(watch)
                    offset += _EVENT.size + length
        return watches

    def close(self) -> None:
        """Close the instance and remove all of its watches."""
        os.close(self._fd)
