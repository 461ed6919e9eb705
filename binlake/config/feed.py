"""A feed of a replication: `[[feed]]`, with the names of `cdc cli changefeed create` and of its configuration file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from binlake.common.sections import NameList, Section
from binlake.config.protocols import AvroOptions, CsvOptions, Options, PbOptions, SlaveBinlogOptions
from binlake.config.sinkuri import SinkUri, parse_sink_uri
from binlake.errors import ConfigError
from binlake.rows.schema.job import read_zone

if TYPE_CHECKING:
    from binlake.rules.tables import TableMatcher
    from binlake.rules.topics import Topics


def _check_zone(text: str) -> str:
    if read_zone(text) is None:
        raise ValueError(f"{text!r} is not a time zone; use `+08:00`, `UTC`, or a name that this machine knows")
    return text


def _check_uri(text: str) -> str:
    try:
        parse_sink_uri(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return text


def _check_subject_strategy(text: str) -> str:
    # The registry's clients use the name of a class, with its package.
    if text.rpartition(".")[2] == "TopicNameStrategy":
        return "TopicNameStrategy"
    raise ValueError(f"the subject name strategy {text!r} is not supported; as in TiCDC, only TopicNameStrategy is")


CommitTs = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,19})?$")]
"""A commit_ts as decimal text, or empty."""


_ASCII = 127
_ONE_SEQUENCE = "binlog"
"""The topic of all messages of binlog files."""


class TopicRule(Section):
    """The topic and partitions for the messages of some tables."""

    matcher: NameList = Field(description="patterns of tables, such as `test.*`; the last one that matches decides")
    topic: str = Field(description="the topic; {schema} and {table} are replaced")
    partition: Literal["default", "table", "ts", "index-value"] = Field(
        "index-value", description="how the partition is chosen; index-value keeps the changes of a row in order"
    )


class CsvSection(Section):
    """How a feed with protocol csv writes a line, as TiCDC's `[sink.csv]`."""

    delimiter: str = Field(",", min_length=1, max_length=3, description="separator of values")
    quote: str = Field(
        '"', max_length=1, description="quotes texts, and is doubled inside them; empty = backslash escapes"
    )
    null: str = Field("\\N", description="text for NULL, without quotes")
    include_commit_ts: bool = Field(False, description="add a column with the commit_ts")
    output_old_value: bool = Field(
        False, description="write an update as two lines, D and I, with a column that marks them"
    )
    binary_encoding_method: Literal["base64", "hex"] = Field("base64", description="encoding of BINARY and BLOB")

    @model_validator(mode="after")
    def _require_readable(self) -> CsvSection:
        signs = self.delimiter + self.quote
        bad = any(sign in "\r\n\\" or ord(sign) > _ASCII for sign in signs)
        if bad or (self.quote and self.quote in self.delimiter):
            raise ValueError(
                "delimiter and quote must be different ASCII characters, and neither a line end nor a backslash"
            )
        if any(sign in self.null for sign in f"{signs}\r\n"):
            raise ValueError("null must not contain the delimiter, the quote or a line end")
        return self

    def build_options(self, terminator: str) -> CsvOptions:
        """The options that determine the bytes of the lines."""
        return CsvOptions(
            self.delimiter, self.quote, self.null, self.include_commit_ts, self.output_old_value,
            self.binary_encoding_method, terminator,
        )  # fmt: skip


class FeedSection(Section):
    """Row changes as messages, in commit order."""

    name: str = Field(pattern=r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$", max_length=128, description="the changefeed's id")
    sink_uri: Annotated[str, AfterValidator(_check_uri)] = Field(
        repr=False, description="`kafka://host:port/topic?protocol=avro&...` or `file:///folder?protocol=avro`"
    )
    schema_registry: str = Field(
        "",
        repr=False,
        description="URL of the schema registry; user and password percent-encoded; `?ca=FILE` for https",
    )
    namespace: str = Field("default", description="first part of the namespace of Avro's records")
    rules: NameList = Field(("*.*",), description="patterns of the tables to send; `!` excludes tables")
    dispatchers: tuple[TopicRule, ...] = Field(
        (),
        description="rules for topics; the first that matches applies; default: the sink URI's topic, for avro"
        " `{schema}_{table}`",
    )
    time_zone: Annotated[str, AfterValidator(_check_zone)] = Field(
        "UTC", description="time zone in which TIMESTAMP values are written"
    )
    transactions: bool = Field(
        True,
        description="publish windows in Kafka transactions, each message exactly once; false: at least once, in order",
    )
    csv: CsvSection = Field(CsvSection(), description="format of the lines of protocol csv")
    terminator: Literal["\r\n", "\n"] = Field("\r\n", description="line end in files of canal-json and csv")
    start_ts: CommitTs = Field(
        "", description="commit_ts after which the feed begins (0: the beginning); empty = with its first window"
    )
    target_ts: CommitTs = Field(
        "", description="last commit_ts to send, after which the feed is finished; empty = no end"
    )
    subject_name_strategy: Annotated[str, AfterValidator(_check_subject_strategy)] = Field(
        "TopicNameStrategy", description="naming of the registry's subjects; only `TopicNameStrategy` is supported"
    )

    @model_validator(mode="after")
    def _require_end_after_start(self) -> FeedSection:
        if self.target_ts and int(self.target_ts) <= int(self.start_ts or 0):
            raise ValueError(f"target-ts {self.target_ts} is not above start-ts {self.start_ts}")
        return self

    @cached_property
    def sink(self) -> SinkUri:
        """The parsed sink URI."""
        return parse_sink_uri(self.sink_uri)

    @property
    def options(self) -> Options:
        """The options that determine the bytes of its messages."""
        options = replace(self.sink.options, time_zone=self.time_zone)
        if isinstance(options, CsvOptions):
            return replace(self.csv.build_options(self.terminator), time_zone=self.time_zone)
        return replace(options, namespace=self.namespace) if isinstance(options, AvroOptions) else options

    @cached_property
    def topics(self) -> Topics:
        """The topic and partition rule of each table. Raises ConfigError."""
        # Imported late: not needed to parse DAGs.
        from binlake.rules.topics import OWN_TOPICS, Dispatcher, Topics

        if isinstance(self.sink.options, SlaveBinlogOptions) and (self.dispatchers or not self.sink.topic):
            raise ConfigError(
                "a feed with protocol slave-binlog has one topic, which the sink URI names",
                hint="set sink-uri to kafka://host:port/TOPIC?protocol=slave-binlog, and remove `dispatchers`",
            )
        if isinstance(self.sink.options, PbOptions):
            if self.dispatchers:
                raise ConfigError("a feed with protocol pb writes one sequence of files", hint="remove `dispatchers`")
            return Topics([], default=_ONE_SEQUENCE, shared=True)
        # All other file protocols have one folder for each table.
        shared = self.sink.storage is not None or not isinstance(self.sink.options, AvroOptions)
        default = (self.sink.topic if shared else "") or OWN_TOPICS
        rules = [Dispatcher(rule.matcher, rule.topic, rule.partition) for rule in self.dispatchers]
        return Topics(rules, default=default, shared=shared)

    @cached_property
    def tables(self) -> TableMatcher:
        """Which tables are sent. Raises ConfigError."""
        from binlake.rules.tables import TableMatcher

        return TableMatcher(self.rules)

    @property
    def first_ts(self) -> int | None:
        """`start-ts` as a number; None if the feed begins with its first window."""
        return int(self.start_ts) if self.start_ts else None

    def limit_ts(self, ts: int) -> int:
        """The lower of `ts` and the feed's end."""
        return min(ts, int(self.target_ts)) if self.target_ts else ts

    def compute_data_hash(self) -> str:
        """Hash of all settings that determine its messages; if it changes, unpublished windows are encoded again."""
        values = self.model_dump(
            mode="json", exclude={"name", "schema_registry", "transactions", "start_ts", "target_ts"}
        )
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    def require_rules(self) -> None:
        """Check its patterns and topics. Raises ConfigError with the feed's name."""
        try:
            _ = self.tables, self.topics
        except ConfigError as error:
            raise ConfigError(error.message, where={"feed": self.name, **error.where}, hint=error.hint) from None
