# SPDX-License-Identifier: Apache-2.0
"""The worker of a DiffSpec launch on vLLM's CPU build."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from diffspec.hosts.vllm.worker import AttachesDiffSpec


class DiffSpecCPUWorker(AttachesDiffSpec, CPUWorker):  # type: ignore[misc]
    """vLLM's CPU worker with DiffSpec attached to its drafter."""

    def memory_given(self) -> int:
        """Bytes of the KV cache if its size was given, else of everything."""
        return int(self.cache_config.kv_cache_memory_bytes or self.requested_cpu_memory)
