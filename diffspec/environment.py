# SPDX-License-Identifier: Apache-2.0
"""The environment variables that decide whether a process may use DiffSpec."""

from __future__ import annotations

import os
from collections.abc import Mapping

EXTENSION_ID = "org.vllm-hust.diffspec"
#: Set by the extension manager to the comma-joined ids it enabled, to "" when it enabled none.
ENABLED_BUNDLES = "VLLMHUST_EXT_ENABLED_BUNDLES"
DISABLE = "DIFFSPEC_DISABLE"
#: vSpec's own switch, under its present name and two older ones it still reads; the first that is
#: set counts. Its other variables only set it up, some for its command line.
VSPEC_SWITCHES = ("HUST_VSPEC_ENABLED", "HUST_SPECSLO_ENABLED", "HUST_SPECASCEND_ENABLED")


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
    return bundles is None or EXTENSION_ID in enabled_bundles(env)


def enabled_bundles(environ: Mapping[str, str]) -> list[str]:
    """Ids of the extensions a manager enabled for this launch; empty without a manager."""
    names = (name.strip() for name in environ.get(ENABLED_BUNDLES, "").split(","))
    return [name for name in names if name]


def vspec_switched_on(environ: Mapping[str, str]) -> str | None:
    """The variable by which vSpec is asked for in this environment, with its value; None if none.

    vSpec patches vLLM's speculative decoding too. Whatever it does not read as "off" counts.
    """
    for bundle in enabled_bundles(environ):
        if "vspec" in bundle:
            return f"{ENABLED_BUNDLES} names {bundle}"
    name = next((name for name in VSPEC_SWITCHES if name in environ), None)
    if name is None or environ[name].strip().lower() in ("", "0", "false", "no", "off"):
        return None
    return f"{name}={environ[name]}"
