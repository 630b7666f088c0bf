# SPDX-License-Identifier: Apache-2.0
"""The channel between worker and API process: what arrives, and what damage it bears."""

from __future__ import annotations

import logging
import math
import os
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diffspec import telemetry
from diffspec.metrics import layout
from diffspec.telemetry import (
    ChannelReader,
    ChannelWriter,
    create_channel,
    remove_channel,
)

DEPTH = 3
KEYS = layout(DEPTH)
SNAPSHOT = {key: float(index) for index, key in enumerate(KEYS)}
HEAD = struct.calcsize("=8sII")


@pytest.fixture
def path() -> Iterator[str]:
    created = create_channel(DEPTH)
    assert created is not None
    yield created
    remove_channel()


@pytest.fixture
def writer(path: str) -> Iterator[ChannelWriter]:
    end = ChannelWriter(path)
    yield end
    end.close()


@pytest.fixture
def reader(path: str) -> Iterator[ChannelReader]:
    end = ChannelReader(path)
    yield end
    end.close()


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="vllm.diffspec")
    return lambda: [record.getMessage() for record in caplog.records]


def run_python(code: str) -> Path:
    """The path that a fresh interpreter prints, once that has ended."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr or "planned" in done.stderr, done.stderr
    return Path(done.stdout.strip())


# -- what arrives --


def test_numbers_arrive(
    writer: ChannelWriter, reader: ChannelReader, warnings: Callable[[], list[str]]
) -> None:
    assert reader.read() is None, "nothing was written yet"
    writer.write(SNAPSHOT)
    first = reader.read()
    assert first is not None
    assert first == SNAPSHOT
    writer.write(SNAPSHOT | {"drafted": 1e15 + 1, "break_even": math.nan})
    second = reader.read()
    assert second is not None
    assert second["drafted"] == 1e15 + 1
    assert math.isnan(second["break_even"])
    assert warnings() == []


def test_a_missing_number_is_unknown_and_one_of_no_metric_is_left_out(
    writer: ChannelWriter, reader: ChannelReader
) -> None:
    writer.write({"accepted": 4.0, "no/such": 1.0})
    got = reader.read()
    assert got is not None
    assert set(got) == set(KEYS)
    assert got["accepted"] == 4
    assert math.isnan(got["drafted"])


def test_nothing_is_read_that_was_never_written_together(path: str) -> None:
    writer, reader = ChannelWriter(path), ChannelReader(path)
    writer.write(dict.fromkeys(KEYS, 0.0))
    done = threading.Event()

    def write() -> None:
        for number in range(1, 5001):
            writer.write(dict.fromkeys(KEYS, float(number)))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last, finished = 0.0, False
    while not finished:
        finished = done.is_set()  # one more read after the last write
        if (got := reader.read()) is not None:
            values = {got[key] for key in KEYS}
            assert len(values) == 1
            (value,) = values
            assert value >= last
            last = value
    thread.join()
    assert last == 5000


def test_without_a_channel_both_ends_do_nothing(warnings: Callable[[], list[str]]) -> None:
    writer, reader = ChannelWriter(None), ChannelReader(None)
    writer.write(SNAPSHOT)
    assert reader.read() is None
    assert not writer.open
    assert not reader.open
    assert warnings() == []


# -- damage --


def test_a_half_written_record_is_not_read(
    path: str, writer: ChannelWriter, reader: ChannelReader, warnings: Callable[[], list[str]]
) -> None:
    writer.write(SNAPSHOT)
    whole = Path(path).read_bytes()
    writer.write(dict.fromkeys(KEYS, 7.0))
    newer = Path(path).read_bytes()
    assert len(newer) == len(whole)
    for cut in (HEAD + 1, HEAD + 8, HEAD + 16, HEAD + 24, len(whole) - 4, len(whole) - 1):
        Path(path).write_bytes(newer[:cut] + whole[cut:])
        assert reader.read() is None, cut
    Path(path).write_bytes(newer)
    got = reader.read()
    assert got is not None
    assert got["off"] == 7
    assert warnings() == []


def damaged(whole: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "short head": whole[: HEAD - 1],
        "short": whole[:-1],
        "long": whole + b"\0",
        "foreign": b"somebody else's file, of a good length" + whole,
        "version": whole[:8] + struct.pack("=I", 99) + whole[12:],
        "depth": whole[:12] + struct.pack("=I", 1 << 31) + whole[16:],
        "another depth": whole[:12] + struct.pack("=I", DEPTH + 1) + whole[16:],
    }


@pytest.mark.parametrize("damage", sorted(damaged(bytes(64))))
@pytest.mark.parametrize("end", [ChannelWriter, ChannelReader])
def test_a_file_that_is_not_ours_ends_telemetry_with_one_line(
    path: str,
    tmp_path: Path,
    damage: str,
    end: type[ChannelReader] | type[ChannelWriter],
    warnings: Callable[[], list[str]],
) -> None:
    other = tmp_path / "other"
    contents = damaged(Path(path).read_bytes())[damage]
    other.write_bytes(contents)
    opened = end(str(other))
    assert not opened.open
    for _ in range(2):
        if isinstance(opened, ChannelReader):
            assert opened.read() is None
        else:
            opened.write(SNAPSHOT)
    assert len(warnings()) == 1
    assert str(other) in warnings()[0]
    assert other.read_bytes() == contents


@pytest.mark.parametrize("end", [ChannelWriter, ChannelReader])
def test_a_missing_file_ends_telemetry_with_one_line(
    tmp_path: Path,
    end: type[ChannelReader] | type[ChannelWriter],
    warnings: Callable[[], list[str]],
) -> None:
    assert not end(str(tmp_path / "missing")).open
    (line,) = warnings()
    assert "No such file" in line


def test_a_file_cut_short_while_in_use_harms_nobody(
    path: str, writer: ChannelWriter, reader: ChannelReader, warnings: Callable[[], list[str]]
) -> None:
    writer.write(SNAPSHOT)
    os.truncate(path, HEAD + 8)
    assert reader.read() is None
    assert reader.read() is None
    assert warnings() == ["DiffSpec: no metrics from here on: the file of metrics was cut short"]
    writer.write(SNAPSHOT)
    assert writer.open


def test_numbers_that_are_none_end_the_writer_alone(
    writer: ChannelWriter, reader: ChannelReader, warnings: Callable[[], list[str]]
) -> None:
    writer.write(SNAPSHOT)
    writer.write(SNAPSHOT | {"drafted": "many"})  # type: ignore[dict-item]
    assert not writer.open
    writer.write(SNAPSHOT)
    (line,) = warnings()
    assert line.startswith("DiffSpec: the worker reports no metrics from here on: ")
    got = reader.read()
    assert got is not None
    assert got["accepted"] == SNAPSHOT["accepted"]


def test_the_second_writer_is_kept_out_until_the_first_is_gone(
    path: str, writer: ChannelWriter, reader: ChannelReader, warnings: Callable[[], list[str]]
) -> None:
    writer.write(SNAPSHOT)
    second = ChannelWriter(path)
    second.write(dict.fromkeys(KEYS, 9.0))
    assert not second.open
    got = reader.read()
    assert got is not None
    assert got["off"] == SNAPSHOT["off"]
    assert len(warnings()) == 1
    writer.close()
    third = ChannelWriter(path)
    third.write(dict.fromkeys(KEYS, 9.0))
    got = reader.read()
    third.close()
    assert got is not None
    assert got["off"] == 9


def test_a_writer_that_was_dropped_lets_the_next_one_in(path: str) -> None:
    ChannelWriter(path)
    assert ChannelWriter(path).open


# -- the file's life --


def test_the_file_is_private_and_a_newer_launch_takes_its_place(path: str) -> None:
    found = os.stat(path)  # noqa: PTH116
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_ISREG(found.st_mode)
    writer, reader = ChannelWriter(path), ChannelReader(path)
    newer = create_channel(DEPTH)
    assert newer is not None
    assert newer != path
    assert not Path(path).exists()
    # Engines that run already go on.
    writer.write(SNAPSHOT)
    assert reader.read() is not None
    assert ChannelReader(newer).read() is None


def test_where_no_file_can_be_created_there_are_no_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr(telemetry, "_MEMORY", tmp_path / "missing")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing too"))
    assert create_channel(DEPTH) is None
    (line,) = warnings()
    assert line.startswith("DiffSpec: no metrics, because")


@pytest.mark.parametrize("end", ["", "; sys.exit(3)", "; raise SystemExit", "; planned"])
def test_the_file_is_gone_when_its_process_is(end: str) -> None:
    left = run_python(
        "import sys; from diffspec.telemetry import create_channel\n"
        f"path = create_channel(2); open(path).close(); print(path, flush=True){end}"
    )
    assert left.is_absolute()
    assert not left.exists()


def test_a_forked_child_does_not_remove_its_parents_file() -> None:
    code = (
        "import os, sys, pathlib; from diffspec.telemetry import create_channel\n"
        "path = create_channel(2)\n"
        "child = os.fork()\n"
        "if not child: sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert pathlib.Path(path).exists()\n"
        "print(path)"
    )
    assert not run_python(code).exists()
