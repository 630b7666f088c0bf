# SPDX-License-Identifier: Apache-2.0
"""Draft K/V: canonical pages at absolute positions, a small working cache at local ones."""
