"""Converts the rules of DM's task for its instances: which tables, kinds of changes and rows, under which names.

Rule: the replication gets the rules that the instances name, in their order; a rule that no instance names is reported.
If databases are renamed to include their source's name, `{source}_{schema}`, each instance has its own copy of a rule.
DM applies a pattern to a database's name at its source; the converted pattern applies to the name with the source as
prefix, and matches the same databases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlake.extras.importing.document import DocumentEntry, ImportOutcome
from binlake.rules.patterns import compile_wildcard

TEMPLATE = "{source}_{schema}"
SYSTEM = "mysql|sys|information_schema|performance_schema|dm_heartbeat"
_CLASS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")
EVENT_KEYS = ("schema-pattern", "table-pattern", "events", "sql-pattern", "action")
_ROUTE_KEYS = ("schema-pattern", "table-pattern", "target-schema", "target-table", "extract-table", "extract-schema",
               "extract-source")  # fmt: skip
_EXPRESSION_KEYS = ("schema", "table", "insert-value-expr", "update-old-value-expr", "update-new-value-expr",
                    "delete-value-expr")  # fmt: skip
_LIST_KEYS = ("do-dbs", "do-tables", "ignore-dbs", "ignore-tables")


def escape_name(name: str) -> str:
    """A source's name, escaped for a regular expression."""
    return name.replace(".", r"\.")


@dataclass(frozen=True)
class Scope:
    """The `prefix` of the names of a source's databases; empty if they are not renamed."""

    prefix: str = ""

    @classmethod
    def of(cls, source: str, *, distinct: bool) -> Scope:
        """The scope of a source; `distinct`: its databases are renamed."""
        return cls(TEMPLATE.format(source=source, schema="") if distinct else "")

    def rename_database(self, schema: str) -> str:
        """The new name of a database."""
        return self.prefix + schema

    def convert_pattern(self, entry: DocumentEntry) -> str:
        """Convert a pattern of databases, wildcards or ~regex. Raises ConfigError."""
        text = entry.read_text()
        if not self.prefix or not text.startswith("~"):
            return self.prefix + text
        return f"~^{escape_name(self.prefix)}{convert_to_regex(entry)}"

    def build_exclusion(self, entries: Sequence[DocumentEntry]) -> str:
        """A pattern of all databases except those that `entries` match and those of the server. Raises ConfigError."""
        others = [*map(convert_to_regex, entries), *([f"(?:{SYSTEM})$"] if self.prefix else [])]
        return f"~^{escape_name(self.prefix)}(?!{'|'.join(others)})" if others else "*"

    def convert_capture(self, entry: DocumentEntry) -> str:
        """Convert a regular expression that captures parts of a database's name. Raises ConfigError."""
        return (
            f"^{escape_name(self.prefix)}{_remove_anchor(entry, entry.read_text())}"
            if self.prefix
            else entry.read_text()
        )


def convert_to_regex(entry: DocumentEntry) -> str:
    """A pattern as a regular expression that is matched at the beginning of a name. Raises ConfigError."""
    text = entry.read_text()
    if text.startswith("~"):
        return _remove_anchor(entry, text[1:])
    return compile_wildcard(text).regex.pattern.removeprefix("^")


def _remove_anchor(entry: DocumentEntry, regex: str) -> str:
    outside = _CLASS.sub("", regex)
    if regex.startswith("^") and "^" not in outside[1:] and "|" not in outside:
        return regex[1:]
    if "^" not in outside:
        return f".*?(?:{regex})"
    raise entry.build_error(
        f"`{entry.key}` cannot be combined with the source's name as prefix",
        "use a single ^, at its beginning, and no |; or pass --keep-schema-names",
    )


@dataclass(frozen=True)
class Instance:
    """One of `mysql-instances`: its keys, and the event filter in the file of its source."""

    source: str
    scope: Scope
    keys: Mapping[str, DocumentEntry]
    filters: Sequence[DocumentEntry] = ()

    def list_rule_names(self, key: str) -> Sequence[DocumentEntry]:
        """The names of rules under `key`."""
        return self.keys[key].read_items() if key in self.keys else ()


def take_rules(outcome: ImportOutcome, task: Mapping[str, DocumentEntry], instances: Sequence[Instance]) -> None:
    """Put the rules of the task into the replication. Raises ConfigError."""
    _take_tables(outcome, _read_sets(task, "block-allow-list") | _read_sets(task, "black-white-list"), instances)
    _take_each(outcome, "filters", _read_sets(task, "filters"), instances, "filter-rules", _convert_event_rule)
    rules = [_convert_event_rule(entry, instance.scope) for instance in instances for entry in instance.filters]
    if rules:
        _add_rules(outcome, "filters", rules)
    _take_each(outcome, "routes", _read_sets(task, "routes"), instances, "route-rules", _convert_route)
    _take_each(
        outcome,
        "expression-filter",
        _read_sets(task, "expression-filter"),
        instances,
        "expression-filters",
        _convert_expression,
    )
    if any(instance.scope.prefix for instance in instances):
        _add_route_to_source_names(outcome, instances)


def _read_sets(task: Mapping[str, DocumentEntry], key: str) -> dict[str, DocumentEntry]:
    return dict(task[key].read_mapping()) if key in task else {}


def _add_rules(outcome: ImportOutcome, section: str, rules: Sequence[dict[str, Any]]) -> None:
    present = outcome.replication.setdefault(section, [])
    present += [rule for number, rule in enumerate(rules) if rule not in (*present, *rules[:number])]


def _take_each(
    outcome: ImportOutcome,
    section: str,
    sets: Mapping[str, DocumentEntry],
    instances: Sequence[Instance],
    key: str,
    convert: Any,
) -> None:
    users: dict[str, list[str]] = {}
    rules = []
    for instance in instances:
        for named in instance.list_rule_names(key):
            rule = _require(sets, named, section)
            users.setdefault(named.read_text(), []).append(instance.source)
            rules.append(convert(rule, instance.scope))
    if rules:
        _add_rules(outcome, section, rules)
    for name, entry in sets.items():
        _say_users(outcome, entry, f"[[{section}]]", users.get(name, []), instances)


def _require(sets: Mapping[str, DocumentEntry], named: DocumentEntry, section: str) -> DocumentEntry:
    rule = sets.get(named.read_text())
    if rule is None:
        known = ", ".join(sorted(sets)) or "none"
        raise named.build_error(f"`{named.key}` names the rule {named.read_text()!r}, which `{section}` does not have",
                               f"known: {known}")  # fmt: skip
    return rule


def _say_users(
    outcome: ImportOutcome, entry: DocumentEntry, section: str, users: Sequence[str], instances: Sequence[Instance]
) -> None:
    if not users:
        outcome.say(entry, "none", "omitted, since no instance names it")
    elif len(users) == len(instances) or all(one.scope.prefix for one in instances):
        outcome.say(entry, "taken", f"{section} for {', '.join(users)}" if len(instances) > 1 else section)
    else:
        outcome.say(entry, "differs", f"{section} applies to all sources, not only to {', '.join(users)}")


def _convert_event_rule(entry: DocumentEntry, scope: Scope) -> dict[str, Any]:
    keys = entry.read_table(EVENT_KEYS)
    rule = {name: value.strip_positions() for name, value in keys.items()}
    if "schema-pattern" in keys:
        rule["schema-pattern"] = scope.convert_pattern(keys["schema-pattern"])
    if "action" in keys:
        rule["action"] = keys["action"].read_text().capitalize()
    return rule


def _convert_route(entry: DocumentEntry, scope: Scope) -> dict[str, Any]:
    keys = entry.read_table(_ROUTE_KEYS)
    rule: dict[str, Any] = {}
    for name, value in keys.items():
        if not name.startswith("extract-"):
            rule[name] = scope.convert_pattern(value) if name == "schema-pattern" else value.read_text()
            continue
        regexp = f"{name.removeprefix('extract-')}-regexp"
        parts = value.read_table((regexp, "target-column"))
        rule[name] = {key: part.read_text() for key, part in parts.items()}
        if name == "extract-schema" and regexp in parts:
            rule[name][regexp] = scope.convert_capture(parts[regexp])
    return rule


def _convert_expression(entry: DocumentEntry, scope: Scope) -> dict[str, Any]:
    keys = entry.read_table(_EXPRESSION_KEYS)
    return {
        name: scope.rename_database(value.read_text()) if name == "schema" else value.read_text()
        for name, value in keys.items()
    }


def _add_route_to_source_names(outcome: ImportOutcome, instances: Sequence[Instance]) -> None:
    """Add a route that gives databases without a route the name they have at the source."""
    sources = "|".join(escape_name(instance.source) for instance in instances)
    rule = {"schema-pattern": f"~^(?:{sources})_(.*)$", "target-schema": "{1}"}
    outcome.replication.setdefault("routes", []).append(rule)
    if not outcome.replication.get("block-allow-list", {}).get("do-dbs"):
        lists = outcome.replication.setdefault("block-allow-list", {})
        lists.setdefault("ignore-dbs", []).append(f"~^(?:{sources})_(?:{SYSTEM})$")


def _take_tables(outcome: ImportOutcome, sets: Mapping[str, DocumentEntry], instances: Sequence[Instance]) -> None:
    """Join the table lists of all instances into one."""
    chosen: list[tuple[Instance, DocumentEntry | None]] = []
    users: dict[str, list[str]] = {}
    for instance in instances:
        lists = _find_named_lists(sets, instance)
        chosen.append((instance, lists))
        if lists is not None:
            users.setdefault(lists.key, []).append(instance.source)
    for entry in sets.values():
        _say_users(outcome, entry, "[block-allow-list]", users.get(entry.key, []), instances)
    joined: dict[str, list[Any]] = {}
    for kind in ("dbs", "tables"):
        _join_lists(joined, kind, chosen)
    if joined:
        outcome.replication["block-allow-list"] = joined


def find_table_lists(task: Mapping[str, DocumentEntry], instance: Instance) -> DocumentEntry | None:
    """The table lists that an instance names; None if it names none. Raises ConfigError."""
    return _find_named_lists(_read_sets(task, "block-allow-list") | _read_sets(task, "black-white-list"), instance)


def _find_named_lists(sets: Mapping[str, DocumentEntry], instance: Instance) -> DocumentEntry | None:
    named = instance.keys.get("block-allow-list") or instance.keys.get("black-white-list")
    return _require(sets, named, "block-allow-list") if named is not None and named.read_text() else None


def _join_lists(
    joined: dict[str, list[Any]], kind: str, chosen: Sequence[tuple[Instance, DocumentEntry | None]]
) -> None:
    """Join the lists `do-KIND` and `ignore-KIND` of all instances; if one instance has a do-list, all get one."""
    do, ignore = f"do-{kind}", f"ignore-{kind}"
    tables = [{} if entry is None else entry.read_table(_LIST_KEYS) for _, entry in chosen]
    anyone_does = any(keys[do].read_items() for keys in tables if do in keys)
    for (instance, _), keys in zip(chosen, tables, strict=True):
        wanted = _read_list(keys.get(do), instance.scope, kind)
        left_out = _read_list(keys.get(ignore), instance.scope, kind)
        if anyone_does and not wanted:
            ignored = keys[ignore].read_items() if ignore in keys else ()
            wanted = (
                [instance.scope.build_exclusion(ignored)]
                if kind == "dbs"
                else _build_do_tables(ignored, instance.scope)
            )
            left_out = []
        for name, values in ((do, wanted), (ignore, left_out)):
            if values:
                present = joined.setdefault(name, [])
                present += [value for value in values if value not in present]


def _build_do_tables(ignored: Sequence[DocumentEntry], scope: Scope) -> list[Any]:
    """A do-list of all tables except those in `ignored`."""
    by_db: dict[str, list[DocumentEntry]] = {}
    dbs = []
    for table in ignored:
        keys = _read_table_name(table)
        db = keys["db-name"]
        if re.search(r"^~|[*?\[]", db.read_text()):
            raise db.build_error(
                f"`{db.key}` is a pattern in an ignore-list, while another instance has do-tables",
                "name the databases one by one, or give this instance do-tables",
            )
        if db.read_text() not in by_db:
            dbs.append(db)
        by_db.setdefault(db.read_text(), []).append(keys["tbl-name"])
    tables: list[Any] = [{"db-name": scope.build_exclusion(dbs), "tbl-name": "*"}]
    for name, names in by_db.items():
        tables.append({"db-name": scope.rename_database(name), "tbl-name": Scope().build_exclusion(names)})
    return tables


def _read_table_name(entry: DocumentEntry) -> Mapping[str, DocumentEntry]:
    keys = entry.read_table(("db-name", "tbl-name"))
    missing = [name for name in ("db-name", "tbl-name") if name not in keys]
    if missing:
        raise entry.build_error(f"`{entry.key}` has no `{missing[0]}`")
    return keys


def _read_list(entry: DocumentEntry | None, scope: Scope, kind: str) -> list[Any]:
    if entry is None:
        return []
    if kind == "dbs":
        return [scope.convert_pattern(one) for one in entry.read_items()]
    names = map(_read_table_name, entry.read_items())
    return [
        {"db-name": scope.convert_pattern(keys["db-name"]), "tbl-name": keys["tbl-name"].read_text()} for keys in names
    ]
