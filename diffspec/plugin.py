# SPDX-License-Identifier: Apache-2.0
"""The ``vllm.general_plugins`` entry point.

vLLM calls :func:`register` in every process of every launch where this package is installed,
whether or not the launch uses DiffSpec, so it must be cheap, silent and unable to fail.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

EXTENSION_ID = "org.vllm-hust.diffspec"
#: Set by the extension manager to the comma-joined ids it enabled, to "" when it enabled none.
ENABLED_BUNDLES = "VLLMHUST_EXT_ENABLED_BUNDLES"
DISABLE = "DIFFSPEC_DISABLE"


def wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process may use DiffSpec at all.

    ``DIFFSPEC_DISABLE`` set to 1, true, yes or on says no. Otherwise a launch without the
    extension manager says yes and a managed one says yes only if it enabled this extension: vLLM
    loads every installed plugin, so one that was disabled has to stay out by itself.
    """
    env = os.environ if environ is None else environ
    if env.get(DISABLE, "").strip().lower() in ("1", "true", "yes", "on"):
        return False
    bundles = env.get(ENABLED_BUNDLES)
    return bundles is None or EXTENSION_ID in (name.strip() for name in bundles.split(","))


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
