# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the vLLM-HUST Extension Manager: the `vllm-hust-ext` command, for tests alone.

What can go wrong for a user is raised as ``ValueError`` or ``OSError`` and becomes exit code 2 in
:mod:`diffspec_manager_standin.cli`, as in the command it stands for.
"""
