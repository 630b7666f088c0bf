# SPDX-License-Identifier: Apache-2.0
"""The proposer: one drafting cycle over a batch, independent of the serving engine."""
