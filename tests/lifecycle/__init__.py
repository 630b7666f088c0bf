# SPDX-License-Identifier: Apache-2.0
"""DiffSpec as an extension of the Manager, from installation to removal.

Everything goes through the `vllm-hust-ext` command: by default the stand-in of
``tests/manager_standin``, with ``--manager=path`` whatever the PATH has.
"""
