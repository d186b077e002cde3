"""What the judge adds to schemathesis, which loads this file: whether a refusal is one that no schema could state."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
from schemathesis.core.failures import Failure

sys.path.insert(0, str(Path(__file__).parent))
from refusals import reason_of

# It leans towards bodies that are taken, for which it draws thousands that it never sends: no case in nine tenths of
# the time.
hypothesis.target = lambda *observation, **label: None


@schemathesis.check
def refusal_has_a_reason(ctx: Any, response: Any, case: Any) -> None:
    """A body that the schema allows is taken, or refused for what no schema can state."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    message = response.json()["error"]["message"]
    if reason_of(message) is None:
        # Each once, whatever the values in it.
        text = "refused, though the schema allows it: " + re.sub(r"\d[\d.e+-]*", "N", message)
        raise Failure(operation=case.operation.label, title="Refusal without a reason", message=text)


@schemathesis.check
def a_timeout_was_asked_for(ctx: Any, response: Any, case: Any) -> None:
    """504 is an answer only to bodies with a timeout: the server of the judge sets none."""
    if response.status_code == 504 and not (isinstance(case.body, dict) and case.body.get("timeout") is not None):
        raise AssertionError("a request without a timeout ended with 504")
