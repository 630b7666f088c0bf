# SPDX-License-Identifier: Apache-2.0
"""Records the touch points of every release anew, from its downloaded source package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from diffspec.hosts.packages import fetch, sha256, unpack
from diffspec.hosts.releases import RELEASES, Release
from diffspec.hosts.snapshot import Snapshot, record
from diffspec.hosts.source import HostSource


def refreshed(
    archives: Path, unpacked: Path, releases: Sequence[Release] = RELEASES
) -> Iterator[Snapshot]:
    """Snapshots of ``releases``, one after the other, downloading what ``archives`` lacks.

    A vLLM-Ascend release is read with the vLLM it is made for beside it, since its classes have
    their bases there.

    Raises:
        FetchError: a package could not be had.
    """
    for release in releases:
        archive = fetch(release.host, release.version, archives)
        folders = [unpack(release.host, archive, unpacked)]
        if release.beside:
            folders.append(unpack("vllm", fetch("vllm", release.beside, archives), unpacked))
        source = HostSource(*folders)
        yield record(release, source, archive=archive.name, sha256=sha256(archive))
