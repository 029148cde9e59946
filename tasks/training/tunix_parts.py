"""The modules of Tunix that are used, without what would come with them: the only place where Tunix is imported.

`import tunix` runs the package's `__init__`, which imports all of Tunix (its agents pandas), and metrax, which imports tensorboardX, which
imports torch and google.cloud.storage wherever they are installed. Nothing of that is used here, and each worker process would pay for it
with 3 s of CPU time and 280 MB. So the package stays unexecuted until something of it is asked for, as of any other package later on, and
tensorboardX, which can do without them, does not find these two.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

OPTIONAL = ("torch", "google.cloud.storage")
"""What tensorboardX imports when it can: to accept torch's tensors, and to write to buckets."""


class Unexecuted(ModuleType):
    """A package whose `__init__` runs when an attribute is asked for that it lacks; its submodules can be imported before."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def unexecuted(package: str) -> None:
    """Make the package importable without running it, unless somebody has imported it. Raises ImportError when it is not installed."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"{package} is not installed")
    module = importlib.util.module_from_spec(spec)
    module.__class__ = Unexecuted
    sys.modules[package] = module


@contextmanager
def hidden(*modules: str) -> Iterator[None]:
    """Within the block, importing one of these raises ImportError, unless it was imported before; after it, they are found again."""
    missing = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


unexecuted("tunix")
with hidden(*OPTIONAL):
    from tunix.rl import trainer as policy_trainer
    from tunix.sft import peft_trainer
    from tunix.sft.dpo import dpo_trainer

__all__ = ["dpo_trainer", "peft_trainer", "policy_trainer"]
