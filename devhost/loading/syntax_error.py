"""The error of a text that is not YAML."""


class TreeError(Exception):
    """The text is not YAML, or uses YAML that a configuration may not use.

    Attributes:
        line: Counted from 1.
        column: Counted from 1.
    """

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
