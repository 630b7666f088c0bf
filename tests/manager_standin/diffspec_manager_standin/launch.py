# SPDX-License-Identifier: Apache-2.0
"""Starts the command in a session of its own, hands signals on and reports how it ended."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from diffspec_manager_standin.discovery import Bundle
from diffspec_manager_standin.evidence import PATH_VARIABLE

DEFAULT_GRACE_S = 10.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def observer_variables(
    bundles: Sequence[Bundle], evidence_log: Path, environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables for a host that reports what worked; a real launch of at least one extension has
    them and a dry run does not show them.

    Raises:
        ValueError: if the operator exported one of them.
    """
    if not bundles:
        return {}
    parts = [f"{b.id}\n{b.distribution_version}\n{b.path}\n" for b in bundles]
    added = {
        # What the Manager names. The stand-in has no such module, and stock vLLM loads none.
        "VLLM_ECPA_EVIDENCE_SINK": "vllm_hust_ext.runtime_evidence:record_event",
        "VLLM_ECPA_EVIDENCE_STRICT": "1",
        "VLLM_ECPA_PLAN_ID": hashlib.sha256("".join(parts).encode()).hexdigest(),
        "VLLM_ECPA_LAUNCH_ID": str(uuid.uuid4()),
        PATH_VARIABLE: str(evidence_log),
    }
    if taken := sorted(set(added) & set(environ)):
        raise ValueError(f"launch variables are already set: {taken}")
    return added


def run(command: Sequence[str], environment: Mapping[str, str], grace_s: float) -> int:
    """Run ``command`` to its end and return the exit code for ours.

    The child's own code; 256 minus the signal that killed it; 128 plus the signal *we* were sent
    first, whatever the child made of it.

    Raises:
        OSError: if the command cannot be started.
    """
    group = _Group(grace_s)
    for number in _FORWARDED:
        signal.signal(number, group.forward)
    signal.signal(signal.SIGALRM, group.give_up)
    process = subprocess.Popen(list(command), env=dict(environment), start_new_session=True)
    group.started(process.pid)
    code = process.wait()
    group.kill(signal.SIGKILL)  # what its leader left behind
    if group.received:
        return 128 + group.received[0]
    return 256 + code if code < 0 else code


class _Group:
    """The child's process group, and the signals that came for it."""

    def __init__(self, grace_s: float) -> None:
        self.received: list[int] = []
        self._grace_s = grace_s
        self._id: int | None = None

    def started(self, pid: int) -> None:
        self._id = pid
        if self.received:
            # It came before there was a group to send it to.
            self.kill(self.received[0])

    def forward(self, number: int, _: FrameType | None) -> None:
        if not self.received:
            signal.setitimer(signal.ITIMER_REAL, max(self._grace_s, 1e-6))
        self.received.append(number)
        self.kill(number if len(self.received) == 1 else signal.SIGKILL)

    def give_up(self, *_: object) -> None:
        self.kill(signal.SIGKILL)

    def kill(self, number: int) -> None:
        if self._id is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._id, number)
