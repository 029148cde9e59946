"""`infra/README.md`: its names and prices are those of the code and of `infra/terraform/`.
Its commands and links are tried in `tests/flows/cli/test_documents.py`."""

import re

from infra.settings import Settings, TpuSettings
from infra.tpu.types import TPU_TYPES
from tests.infra.terraform_files import FILES, REPOSITORY

README = (REPOSITORY / "infra" / "README.md").read_text(encoding="utf-8")


def test_the_first_run_takes_fewer_than_ten_commands() -> None:
    steps = re.findall(r"^\d+\. `(.+)`$", README.split("## First run")[1].split("\n## ")[0], re.M)
    assert 0 < len(steps) < 10
    assert "lyceum run quickstart --target v5e-8" in steps[-1]


def test_every_name_of_the_readme_exists() -> None:
    assert set(re.findall(r"-var '?(\w+)=", README)) <= set(FILES["variable"])
    assert set(re.findall(r"output -raw (\w+)", README)) <= set(FILES["output"])
    models = (Settings, TpuSettings)
    known = {model.PREFIX + name.upper() for model in models for name in model.model_fields}
    assert set(re.findall(r"\bLYCEUM_\w+", README)) <= known
    for module in re.findall(r"python -m ([\w.]+)", README):
        assert (REPOSITORY / (module.replace(".", "/") + ".py")).exists(), module


def test_prices_of_the_readme_are_those_that_runs_are_counted_by() -> None:
    v5e = TPU_TYPES["v5e-8"]
    for tier, words in (("spot", "spot"), ("on-demand", "on demand")):
        price = v5e.usd_per_chip_hour[tier] * v5e.chips
        assert f"| v5e-8, an hour, {words} | {price:.2f} |" in README
