"""`infra/README.md`: its commands, names, prices and messages are those of the code and of
`infra/terraform/`."""

import re
import shlex

from flows.cli import main as cli
from infra.settings import Settings, TpuSettings
from infra.tpu.types import TPU_TYPES
from tests.infra.terraform_files import FILES, REPOSITORY

README = (REPOSITORY / "infra" / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The command lines of README.md: those of code blocks, and those of numbered steps."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", README, re.M | re.S))
    inline = re.findall(r"`([^`\n]+)`", README)
    return [line.split("   #")[0].strip() for line in blocks.splitlines()] + inline


def test_the_first_run_takes_fewer_than_ten_commands() -> None:
    steps = re.findall(r"^\d+\. `(.+)`$", README.split("## First run")[1].split("\n## ")[0], re.M)
    assert 0 < len(steps) < 10
    assert "lyceum run quickstart --target v5e-8" in steps[-1]


def test_every_lyceum_command_of_the_readme_is_one() -> None:
    found = [
        line.split("lyceum ", 1)[1]
        for line in commands()
        if re.search(r"(^|uv run |fake_cloud )lyceum ", line)
    ]
    assert len(found) > 3
    for line in found:
        cli.parser().parse_args(shlex.split(line.split(" #")[0]))


def test_every_variable_output_and_setting_of_the_readme_exists() -> None:
    lines = "\n".join(commands())
    assert set(re.findall(r"-var '?(\w+)=", lines)) <= set(FILES["variable"])
    assert set(re.findall(r"output -raw (\w+)", lines)) <= set(FILES["output"])
    assert set(re.findall(r"`(\w+)`", README)) & {
        "zones",
        "members",
        "secrets",
        "shipped_days",
        "soft_delete_days",
    } <= set(FILES["variable"])
    known = {
        model.PREFIX + name.upper()
        for model in (Settings, TpuSettings)
        for name in model.model_fields
    }
    assert set(re.findall(r"\bLYCEUM_\w+", README)) <= known


def test_every_module_and_file_of_the_readme_exists() -> None:
    for module in re.findall(r"python -m ([\w.]+)", README):
        assert (REPOSITORY / (module.replace(".", "/") + ".py")).exists(), module
    for link in re.findall(r"\]\((?!https:)([^)]+)\)", README):
        assert (REPOSITORY / "infra" / link).exists(), link


def test_prices_of_the_readme_are_those_that_runs_are_counted_by() -> None:
    v5e = TPU_TYPES["v5e-8"]
    for tier, words in (("spot", "spot"), ("on-demand", "on demand")):
        assert (
            f"| v5e-8, an hour, {words} | {v5e.usd_per_chip_hour[tier] * v5e.chips:.2f} |" in README
        )


def test_messages_of_the_readme_are_those_that_lyceum_prints() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "infra").rglob("*.py")
    )
    messages = re.findall(r"^\| `([^`]+)` \|", README.split("## When something is wrong")[1], re.M)
    assert len(messages) > 5
    assert [message for message in messages if message not in source] == []
