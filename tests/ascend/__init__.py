# SPDX-License-Identifier: Apache-2.0
"""The vLLM-Ascend adapter beside the real package, in an environment of its own.

``environment.py`` makes that environment, ``test_inside.py`` runs the tests of ``inside/`` in it.
"""
