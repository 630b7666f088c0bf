# SPDX-License-Identifier: Apache-2.0
"""Will this run here, and if not, what has to change: the checks behind ``diffspec doctor``.

Every check reads files, metadata and the environment and returns findings; none imports torch or
vLLM. Only :mod:`diffspec.doctor.deep` does, in a process of its own.
"""
