"""What a YAML syntax error means, naming the usual mistakes as such."""

import yaml


def explain(error: yaml.MarkedYAMLError, text: str, line: int, column: int) -> str:
    """Say what a syntax error is, naming the usual mistakes as such."""
    problem = error.problem or error.context or "not YAML"
    lines = text.splitlines()
    around = lines[line] if line < len(lines) else ""
    before = around[:column]
    if "${" in around and ("{" in before.replace("${", "") or "[" in before):
        return 'inside { } and [ ] a template must be quoted: write "${…}"'
    for character in around[max(0, column - 1) : column + 1]:
        if character in "%@`*&!|>":
            return f"a text that begins with {character!r} must be quoted ({problem})"
    if "\t" in around[: column + 1] and not around[: column + 1].strip():
        return "indented with a tab: YAML wants spaces"
    if "mapping values are not allowed" in problem:
        return f"{problem}: a text with ': ' in it must be quoted"
    if error.context and "flow" in error.context:
        return f"{problem}, {error.context}: quote texts with {{ }} [ ] or , in them"
    return f"not YAML: {problem}"
