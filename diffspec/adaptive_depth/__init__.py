# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft: acceptance statistics, costs and the policy over both."""
