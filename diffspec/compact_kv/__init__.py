# SPDX-License-Identifier: Apache-2.0
"""The draft's canonical and working key/value caches."""
