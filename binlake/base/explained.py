"""Completes `--help`: each action has a description, and the examples that begin with its words."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence

_HEAD = "examples:\n"


class _Help(argparse.HelpFormatter):
    """Leaves the lines of examples as they are: a folded command line cannot be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEAD) else super()._fill_text(text, width, indent)


def explain_actions(parser: argparse.ArgumentParser, examples: Sequence[str]) -> None:
    """Add to `parser` and each of its actions the examples of it that no action below it has."""
    # argparse has no public way to walk the actions of a parser.
    below = list(_list_actions(parser))
    for name, (action, text) in {name: one for found in below for name, one in found.items()}.items():
        action.description = action.description or text
        explain_actions(action, [example for example in examples if _begins_with(example, f"{parser.prog} {name}")])
    names = [f"{parser.prog} {name}" for found in below for name in found]
    own = [example for example in examples if not any(_begins_with(example, name) for name in names)]
    parser.formatter_class = _Help
    parser.epilog = _HEAD + "\n".join(f"  {example}" for example in own or examples)


def find_action(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the action that `arguments` name: its usage shows the options that were meant; else `parser`."""
    below = {name: action for found in _list_actions(parser) for name, (action, _) in found.items()}
    for at, word in enumerate(arguments):
        if word in below:
            return find_action(below[word], arguments[at + 1 :])
    return parser


def _list_actions(parser: argparse.ArgumentParser) -> Iterator[Mapping[str, tuple[argparse.ArgumentParser, str]]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield {name: (one, texts.get(name, "")) for name, one in action.choices.items()}


def _begins_with(example: str, words: str) -> bool:
    return f"{example} ".startswith(f"{words} ")
