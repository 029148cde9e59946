"""The chain on Metaflow: six steps and its two own."""

from chain_stage import finish, settings, stage
from metaflow import FlowSpec, step


class Chain(FlowSpec):
    @step
    def start(self) -> None:
        self.data = b""
        self.next(self.one)

    @step
    def one(self) -> None:
        self.data = stage(1, settings()[0], self.data)
        self.next(self.two)

    @step
    def two(self) -> None:
        self.data = stage(2, settings()[1], self.data)
        self.next(self.three)

    @step
    def three(self) -> None:
        self.data = stage(3, settings()[2], self.data)
        self.next(self.four)

    @step
    def four(self) -> None:
        self.data = stage(4, settings()[3], self.data)
        self.next(self.five)

    @step
    def five(self) -> None:
        self.data = stage(5, settings()[4], self.data)
        self.next(self.six)

    @step
    def six(self) -> None:
        self.data = stage(6, settings()[5], self.data)
        self.next(self.end)

    @step
    def end(self) -> None:
        finish(self.data)


if __name__ == "__main__":
    Chain()
