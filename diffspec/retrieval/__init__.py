# SPDX-License-Identifier: Apache-2.0
"""Which chunks of the context the draft gets to see."""
