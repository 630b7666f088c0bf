# SPDX-License-Identifier: Apache-2.0
"""Evidence: records of what was measured, and what is written from them.

A record is a JSON file in ``evidence/``, described by ``schemas/evidence.schema.json``. Pages, the
list of compatible models and the catalogue entry are made from records and from nothing else.
"""
