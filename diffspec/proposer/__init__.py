# SPDX-License-Identifier: Apache-2.0
"""The draft head and one drafting cycle, independent of the host engine."""
