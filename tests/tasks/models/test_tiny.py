"""The tiny model: stages that begin with it are made anew when it is another one."""

from dataclasses import asdict

from schemas.base import digest
from tasks.models.decoder import SIZES
from tasks.models.model_source import TINY, TINY_VERSION
from tasks.models.tiny import VOCABULARY

KNOWN = {"2": "3de22ee85325f97a03f5dc82f069ee23d79f7148364f608411b337b5560c6306"}
"""Version -> digest of architecture and vocabulary. Another digest wants another version."""


def test_another_model_has_another_version():
    found = digest([asdict(SIZES[TINY]), VOCABULARY.read_text(encoding="utf-8")])
    assert KNOWN[TINY_VERSION] == found
