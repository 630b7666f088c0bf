# SPDX-License-Identifier: Apache-2.0
"""The tests inside the other environment are not collected in this one."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.ascend.environment import FOLDER

collect_ignore = [] if Path(sys.prefix) == FOLDER else ["inside"]
