"""The files of `infra/terraform/`, as a parser of their language reads them."""

from pathlib import Path
from typing import Any

import hcl2
from hcl2 import SerializationOptions

REPOSITORY = Path(__file__).parents[2]
TERRAFORM = REPOSITORY / "infra" / "terraform"


def _parsed() -> dict[str, Any]:
    options = SerializationOptions(
        strip_string_quotes=True, explicit_blocks=False, with_comments=False
    )
    found: dict[str, Any] = {}
    for path in sorted(TERRAFORM.glob("*.tf")):
        for kind, blocks in hcl2.loads(
            path.read_text(encoding="utf-8"), serialization_options=options
        ).items():
            for block in blocks:
                for name, body in block.items():
                    known = found.setdefault(kind, {})
                    known[name] = {**known.get(name, {}), **body} if kind == "resource" else body
    return found


FILES = _parsed()
"""All of them as one: `{"variable": {name: body}, "resource": {type: {name: body}}, "output": ...,
"locals": {name: value}, ...}`. Expressions are text: `"${...}"`."""
