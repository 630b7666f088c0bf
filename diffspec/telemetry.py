# SPDX-License-Identifier: Apache-2.0
"""DiffSpec's numbers on their way from the worker to the API process: one small file.

The process that validates a launch creates the file (:func:`create_channel`) and removes it at its
exit; its path travels with the settings. The worker overwrites one record about
once a second (:class:`ChannelWriter`), the stat logger reads the newest (:class:`ChannelReader`).

Layout, in the machine's byte order: magic, version, K; then the record: how often it was written,
one float64 per key of :func:`diffspec.metrics.layout`; then the record's CRC-32. It does not say
when it was written: a worker whose engine has nothing to do writes nothing, and nothing changes.
Whoever reads while the other side writes sees a wrong sum and reads again, on
machines that reorder stores as well. Plain reads and writes at an offset instead of a memory map:
a map of a file that somebody truncates, or of a full file system, kills the process on access;
these raise an error, and an error here ends telemetry, never serving.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import math
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from diffspec.metrics import layout

logger = logging.getLogger("vllm.diffspec")

_MAGIC, _VERSION = b"DIFFSPEC", 2
_HEAD = struct.Struct("=8sII")
_SUM = struct.Struct("=I")
#: No file of ours has more depths; a damaged header cannot ask for more memory than this.
_MOST_DEPTH = 4096
_ATTEMPTS = 5
#: In memory, where there is such a place: writing then never waits for a disk.
_MEMORY = Path("/dev/shm")


class _Layout:
    """Where things are in a file whose K is ``depth``."""

    def __init__(self, depth: int) -> None:
        self.keys = layout(depth)
        self.record = struct.Struct(f"=Q{len(self.keys)}d")
        self.body = self.record.size + _SUM.size
        self.size = _HEAD.size + self.body

    def pack(self, buffer: bytearray, sequence: int, snapshot: Mapping[str, float]) -> None:
        """Put a record and its sum into ``buffer``; what ``snapshot`` lacks is NaN."""
        values = [snapshot.get(key, math.nan) for key in self.keys]
        self.record.pack_into(buffer, 0, sequence, *values)
        _SUM.pack_into(buffer, self.record.size, self.sum(buffer))

    def sum(self, body: bytes | bytearray) -> int:
        """The sum that belongs to the record in ``body``."""
        return zlib.crc32(memoryview(body)[: self.record.size])


class _Channel:
    """A file this process created, until it is removed."""

    def __init__(self, depth: int) -> None:
        place = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
        descriptor, name = tempfile.mkstemp(prefix="diffspec-", suffix=".metrics", dir=place)
        self.path, self.owner = Path(name), os.getpid()
        where = _Layout(depth)
        body = bytearray(where.body)
        where.pack(body, 0, {})
        try:
            os.write(descriptor, _HEAD.pack(_MAGIC, _VERSION, depth) + body)
        except OSError:
            self.remove()
            raise
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        # A forked child inherits this object and not the file.
        if os.getpid() == self.owner:
            with suppress(OSError):
                self.path.unlink()


_current: _Channel | None = None


def create_channel(depth: int) -> str | None:
    """Create the channel of this process's newest launch, with K = ``depth``, mode 0600.

    It takes the place of an older one. Returns its path, or None, said in the log, where no file
    can be created.
    """
    global _current
    remove_channel()
    try:
        _current = _Channel(depth)
    except OSError as error:
        logger.warning("DiffSpec: no metrics, because their file cannot be created: %s", error)
        return None
    return str(_current.path)


def remove_channel() -> None:
    """Remove the channel this process created, if any. Whoever has it open goes on with it."""
    global _current
    if _current is not None:
        _current.remove()
        _current = None


atexit.register(remove_channel)


def _open(path: str, flags: int) -> tuple[int, _Layout]:
    """An open channel: file descriptor and layout.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is none of ours, or not whole.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        head = os.pread(descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise ValueError(f"{path} is not a file of DiffSpec's metrics")
        _, version, depth = _HEAD.unpack(head)
        if version != _VERSION or depth > _MOST_DEPTH:
            raise ValueError(f"{path} was made by another version of vllm-diffspec")
        where = _Layout(depth)
        if os.fstat(descriptor).st_size != where.size:
            raise ValueError(f"{path} has another size than its number of depths wants")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, where


class _End:
    """One end of a channel; without a path, or after an error, it does nothing."""

    def __init__(self, path: str | None, flags: int, what: str) -> None:
        self._what = what
        self._descriptor: int | None = None
        if path is None:
            return
        try:
            self._descriptor, self._layout = _open(path, flags)
        except Exception as error:
            self._give_up(error)

    @property
    def open(self) -> bool:
        """Whether the channel is in use."""
        return self._descriptor is not None

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()

    def _give_up(self, error: Exception) -> None:
        self.close()
        logger.warning("DiffSpec: %s from here on: %s", self._what, error)


class ChannelWriter(_End):
    """The worker's end. The first writer of a file keeps others out until it is closed.

    Args:
        path: of the channel; None if there is none, and nothing is written then.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__(path, os.O_RDWR, "the worker reports no metrics")
        if self._descriptor is None:
            return
        try:
            # Released by the kernel with the descriptor, however the process ends.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._give_up(ValueError(f"another process or engine writes to {path}"))
            return
        self._buffer = bytearray(self._layout.body)
        self._sequence = 0

    def write(self, snapshot: Mapping[str, float]) -> None:
        """Publish numbers by flat key. Keys of no metric are left out; a missing one is NaN.

        Never raises: the first error ends telemetry, with one line in the log.
        """
        if self._descriptor is None:
            return
        try:
            self._sequence += 1
            self._layout.pack(self._buffer, self._sequence, snapshot)
            os.pwrite(self._descriptor, self._buffer, _HEAD.size)
        except Exception as error:
            self._give_up(error)


class ChannelReader(_End):
    """The API process's end.

    Args:
        path: of the channel; None if there is none, and nothing is read then.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__(path, os.O_RDONLY, "no metrics")

    def read(self) -> dict[str, float] | None:
        """The newest numbers by flat key; None before the first, without a channel, and while one
        is being written. Never raises."""
        if self._descriptor is None:
            return None
        try:
            for _ in range(_ATTEMPTS):
                if (body := self._whole_body()) is not None:
                    sequence, *values = self._layout.record.unpack_from(body)
                    if sequence == 0:
                        return None
                    return dict(zip(self._layout.keys, values, strict=True))
        except Exception as error:
            self._give_up(error)
        return None

    def _whole_body(self) -> bytes | None:
        """The record with its sum; None if it is half written."""
        assert self._descriptor is not None
        body = os.pread(self._descriptor, self._layout.body, _HEAD.size)
        if len(body) < self._layout.body:
            raise ValueError("the file of metrics was cut short")
        (expected,) = _SUM.unpack_from(body, self._layout.record.size)
        return body if self._layout.sum(body) == expected else None
