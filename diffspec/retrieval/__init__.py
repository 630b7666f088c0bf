# SPDX-License-Identifier: Apache-2.0
"""Which chunks of the context the target attends now, and which of them the draft gets."""
