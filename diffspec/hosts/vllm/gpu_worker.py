# SPDX-License-Identifier: Apache-2.0
"""The worker of a DiffSpec launch on CUDA. Written against vLLM's source; never run on a GPU yet.

The order of calls that this relies on is the CPU worker's. Between loading and the KV cache the
GPU worker also profiles: it may allocate a small KV cache of its own and capture graphs into it.
Both go through the query tap, which only copies into its own buffer, and neither passes
``initialize_from_config``, so no page is bound that is thrown away again. The graphs that serve
are captured after ``initialize_from_config``, with the tap inside.
"""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from diffspec.hosts.vllm.worker import AttachesDiffSpec


class DiffSpecGPUWorker(AttachesDiffSpec, Worker):  # type: ignore[misc]
    """vLLM's GPU worker with DiffSpec attached to its drafter."""

    def memory_given(self) -> int:
        """Bytes of the KV cache if its size was given, else of everything."""
        return int(self.cache_config.kv_cache_memory_bytes or self.requested_memory)
