# SPDX-License-Identifier: Apache-2.0
"""How deep to draft: the seat of the depth policy and the statistics it decides on."""
