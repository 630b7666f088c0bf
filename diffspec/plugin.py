# SPDX-License-Identifier: Apache-2.0
"""The ``vllm.general_plugins`` entry point.

vLLM calls :func:`register` in every process of every launch where this package is installed,
whether or not the launch uses DiffSpec, so it must be cheap, silent and unable to fail.
"""

from __future__ import annotations

from diffspec.environment import wanted


def register() -> None:
    """Make vLLM understand the DiffSpec keys of ``--speculative-config``; safe to call again.

    Never raises. What can go wrong with a host is reported where DiffSpec is asked for; only when
    not even that point exists does a log line here say why vLLM will call our keys unexpected.
    """
    if not wanted():
        return
    try:
        from diffspec.hosts.vllm import routing

        routing.install()
    except Exception as error:
        _log_why_not(error)


def _log_why_not(error: Exception) -> None:
    # Under vLLM's own logger tree, whose handlers also exist in its child processes.
    import logging

    logging.getLogger("vllm.diffspec").warning(
        "DiffSpec is installed but not available on this host, so draft_context_policy and the "
        "diffspec_* keys of --speculative-config will be refused: %s",
        error,
    )
