# SPDX-License-Identifier: Apache-2.0
"""The file given to the extension manager's ``configure``: read, checked, proposed, explained.

With what can be read of the models it names. Imports neither torch nor vLLM.
"""
