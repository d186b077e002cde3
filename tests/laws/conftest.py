"""The laws are tested on the tiny checkpoints of tests/model."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
