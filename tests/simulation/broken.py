"""What ends a history."""


class Broken(Exception):
    """A law does not hold."""

    def __init__(self, law: str, how: str) -> None:
        super().__init__(f"{law}: {how}")
        self.law = law
