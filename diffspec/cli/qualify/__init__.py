# SPDX-License-Identifier: Apache-2.0
"""``diffspec qualify``: does a served endpoint work, and is it faster than the target alone?

Everything here goes over HTTP; a running server is neither imported nor changed. Requests are
greedy, of fixed length, and sent to an endpoint that nobody else uses meanwhile.
"""
