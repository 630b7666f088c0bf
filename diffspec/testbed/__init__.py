# SPDX-License-Identifier: Apache-2.0
"""Small models with known behaviour, for tests, benchmarks and the demo."""
