# SPDX-License-Identifier: Apache-2.0
"""What DiffSpec refuses on vLLM-Ascend beside what it refuses everywhere.

Data only, no import of vLLM-Ascend. The keys of ``--additional-config`` are that host's own; vLLM
ignores them elsewhere, so the rows are judged on an NPU alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diffspec.hosts.launch import LaunchFacts, Unsupported, Where

#: The one attention class whose pages and queries DiffSpec reads on Ascend.
READABLE_ATTENTION = "AscendAttentionBackendImpl"


def additional(f: LaunchFacts, *path: str) -> object:
    """A value of ``--additional-config`` by its keys from the outside in; None if it is not set."""
    value: object = f.additional_config
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def draft_window(f: LaunchFacts) -> object:
    """``draft_window_size``, as it was given."""
    return additional(f, "draft_window_size")


def _xlite(f: LaunchFacts) -> bool:
    return _on(additional(f, "xlite_graph_config", "enabled"))


def _lmhead(f: LaunchFacts) -> bool:
    size = additional(f, "finegrained_tp_config", "lmhead_tensor_parallel_size")
    return _on(size) and str(size) != "0"


def _on(value: object) -> bool:
    # The host takes "false" for False since 0.28 and any other text for True before.
    return bool(value) and str(value).strip().lower() not in ("false", "0", "no", "off")


def _row(
    id: str,
    condition: str,
    message: str,
    applies: Callable[[LaunchFacts], object],
    where: Where = "config",
) -> Unsupported:
    return Unsupported(
        id, condition, message, where, lambda f: f.platform == "npu" and applies(f), "npu"
    )


ASCEND_UNSUPPORTED: tuple[Unsupported, ...] = (
    _row(
        "ascend_draft_window",
        "the host's own sliding window of the draft (draft_window_size)",
        "--additional-config has draft_window_size = {f.additional_config[draft_window_size]}: the "
        "host's window and DiffSpec both choose what the draft attends to; remove "
        "draft_window_size",
        lambda f: draft_window(f) is not None,
    ),
    _row(
        "ascend_xlite",
        "xlite graphs",
        "--additional-config enables xlite_graph_config: its worker runs the target outside of "
        "the attention classes whose queries DiffSpec copies; remove xlite_graph_config",
        _xlite,
    ),
    _row(
        "ascend_lmhead_parallel",
        "an output head with a parallel size of its own",
        "--additional-config sets lmhead_tensor_parallel_size: the draft's head would be spread "
        "over ranks that do not draft together; remove it from finegrained_tp_config",
        _lmhead,
    ),
    _row(
        "ascend_unpadded_batches",
        "unpadded drafter batches",
        "disable_padded_drafter_batch = true: captured decode steps of this host want padded "
        "batches, and DiffSpec reads those; remove it",
        lambda f: f.unpadded_batches,
    ),
    _row(
        "ascend_310p",
        "Ascend 310P",
        "{f.device_name}: a 310P has a worker, attention classes and page formats of its own, "
        "which DiffSpec does not know; use a 910B-series device",
        lambda f: "310P" in (f.device_name or ""),
    ),
    _row(
        "ascend_attention",
        f"attention of another class than {READABLE_ATTENTION}: a quantised (C8) cache, a sparse "
        "one, context parallelism and 310P have their own",
        "the target's attention is of class {f.attention_class} (quantised C8 caches, context "
        f"parallelism and 310P have classes of their own): only {READABLE_ATTENTION} is read; use "
        "a launch without them",
        lambda f: f.attention_class not in (None, READABLE_ATTENTION),
        "load",
    ),
)
