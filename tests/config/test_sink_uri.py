"""Sink URIs as in TiCDC: the page's examples, strict values, no credentials shown (MISSION S2-01, S2-04, S2-35)."""

from __future__ import annotations

from itertools import product

import pytest

from binlake.config.protocols import (
    AvroOptions,
    CanalJsonOptions,
    DebeziumOptions,
    OpenProtocolOptions,
    Options,
    SlaveBinlogOptions,
)
from binlake.config.sinkuri import mask_sink_uri, parse_sink_uri
from binlake.errors import ConfigError

BASE = "kafka://127.0.0.1:9092/topic-name?protocol=avro"


# S2-04, S2-12, S2-33
def test_three_uris_of_the_page_are_parsed() -> None:
    plain = parse_sink_uri(BASE)
    assert (plain.protocol, plain.topic, plain.options) == ("avro", "topic-name", AvroOptions())
    assert plain.kafka is not None
    assert plain.kafka.brokers == ("127.0.0.1:9092",)
    assert parse_sink_uri(f"{BASE}&enable-tidb-extension=true").options == AvroOptions(extension=True)
    texts = f"{BASE}&avro-decimal-handling-mode=string&avro-bigint-unsigned-handling-mode=string"
    assert parse_sink_uri(texts).options == AvroOptions(decimals="string", unsigned_bigints="string")


# S2-35
def test_parameters_can_be_combined() -> None:
    for extension, decimals, bigints, floats in product(
        ("true", "false"), ("precise", "string"), ("long", "string"), ("double", "float")
    ):
        words = f"&enable-tidb-extension={extension}&avro-decimal-handling-mode={decimals}"
        words += f"&avro-bigint-unsigned-handling-mode={bigints}&avro-float-type={floats}"
        options = parse_sink_uri(BASE + words).options
        assert isinstance(options, AvroOptions)
        shown = (str(options.extension).lower(), options.decimals, options.unsigned_bigints, options.floats)
        assert shown == (extension, decimals, bigints, floats)


# S2-01, S2-08, S2-32
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("kafka://h:1/t?protocol=nonsense", "use one of avro"),
        ("kafka://h:1/t", "use one of avro"),
        ("pulsar://h:1/t?protocol=avro", "kafka, kafka\\+ssl, file"),
        (f"{BASE}&enable-tidb-extension=maybe", "use true or false"),
        (f"{BASE}&avro-bigint-unsigned-handling-mode=int", "use one of long, string"),
        (f"{BASE}&avro-decimal-handling=string", "unknown parameters"),
        (f"{BASE}&max-message-bytes=0", "at least 1"),
        (f"{BASE}&protocol=avro", "given twice"),
        ("kafka:///t?protocol=avro", "names no broker"),
        ("kafka://h:x/t?protocol=avro", "not a number"),
        ("file://relative?protocol=avro", "absolute folder"),
        ("s3:///prefix?protocol=avro", "names no bucket"),
        ("kafka://h:1/t?protocol=csv", "csv is for files only"),
        ("kafka://h:1/t?protocol=pb", "pb is for files only"),
        ("file:///p?protocol=pb&date-separator=day", "unknown parameters"),
        ("file:///p?protocol=avro&retention-time=7", "unknown parameters"),
        ("file:///p?protocol=pb&compression=lz4", "use one of none, gzip, zstd"),
        ("s3://b/p?protocol=avro&account-key=x", "unknown parameters"),
        ("s3://b/p?protocol=avro&flush-interval=5s", "unknown parameters"),
        ("file:///p?protocol=avro&file-size=1000", "at least 1048576 and at most 536870912"),
        ("file:///p?protocol=avro&date-separator=hour", "use one of none, year, month, day"),
    ],
)
def test_error_names_the_wrong_part_and_the_allowed_values(uri: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sink_uri(uri)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("canal-json", CanalJsonOptions()),
        ("canal-json&enable-tidb-extension=true&output-raw-change-event=true&delete-only-output-handle-key-columns=true",
         CanalJsonOptions(extension=True, raw_updates=True, delete_keys_only=True)),
        ("open-protocol", OpenProtocolOptions()),
        ("open-protocol&output-old-value=false&output-raw-change-event=true",
         OpenProtocolOptions(old_values=False, raw_updates=True)),
        ("debezium", DebeziumOptions()),
        ("debezium&enable-tidb-extension=true&cluster-id=c1&debezium-disable-schema=true&output-old-value=false",
         DebeziumOptions(extension=True, cluster="c1", schemas=False, old_values=False)),
        ("slave-binlog", SlaveBinlogOptions()),
    ],
)  # fmt: skip
def test_options_of_each_protocol_are_parsed(words: str, options: Options) -> None:
    assert parse_sink_uri(f"kafka://h:1/t?protocol={words}").options == options


# U-27
@pytest.mark.parametrize(
    ("protocol", "foreign"),
    [
        ("avro", "output-raw-change-event"),
        ("canal-json", "output-old-value"),
        ("canal-json", "avro-float-type"),
        ("open-protocol", "enable-tidb-extension"),
        ("debezium", "delete-only-output-handle-key-columns"),
        ("slave-binlog", "output-raw-change-event"),
    ],
)
def test_parameter_of_another_protocol_is_refused_by_name(protocol: str, foreign: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown parameters.*{foreign}"):
        parse_sink_uri(f"kafka://h:1/t?protocol={protocol}&{foreign}=true")


def test_brokers_tls_and_sasl_are_parsed() -> None:
    uri = parse_sink_uri(
        "kafka+ssl://a:1,b/t?protocol=avro&ca=/ca.pem&sasl-mechanism=scram-sha-256&sasl-user=u&sasl-password=p%40"
        "&compression=zstd&partition-num=3"
    )
    kafka = uri.kafka
    assert kafka is not None
    assert (kafka.brokers, kafka.tls, kafka.ca) == (("a:1", "b:9092"), True, "/ca.pem")
    assert (kafka.sasl_mechanism, kafka.sasl_user, kafka.sasl_password) == ("SCRAM-SHA-256", "u", "p@")
    assert (kafka.compression, kafka.partitions) == ("zstd", 3)
    assert "p@" not in repr(uri)


def test_file_sink_has_a_folder() -> None:
    storage = parse_sink_uri("file:///var/my%20feed?protocol=avro").storage
    assert storage is not None
    assert (storage.scheme, storage.root, storage.date_separator) == ("file", "/var/my feed", "day")


# S0-08
def test_binlog_files_have_the_drainers_defaults() -> None:
    storage = parse_sink_uri("file:///backup?protocol=pb&compression=zstd&retention-time=7").storage
    assert storage is not None
    assert (storage.file_size, storage.compression, storage.retention_days) == (512 << 20, "zstd", 7)


def test_object_store_has_a_bucket_and_hides_credentials() -> None:
    uri = (
        "s3://bucket/some/prefix/?protocol=avro&endpoint=http%3A%2F%2F127.0.0.1%3A9000&region=eu-west-1"
        "&access-key=me&secret-access-key=hidden%2B&file-size=1048576&date-separator=month&file-index-width=6"
    )
    storage = parse_sink_uri(uri).storage
    assert storage is not None
    assert (storage.scheme, storage.root) == ("s3", "bucket/some/prefix")
    assert (storage.file_size, storage.date_separator, storage.index_width) == (1 << 20, "month", 6)
    assert storage.access == {
        "endpoint": "http://127.0.0.1:9000", "region": "eu-west-1", "access-key": "me", "secret-access-key": "hidden+",
    }  # fmt: skip
    assert "hidden" not in repr(storage)
    assert "hidden" not in mask_sink_uri(uri)


def test_passwords_are_masked() -> None:
    shown = mask_sink_uri("kafka://u:secret@h:1/t?protocol=avro&sasl-user=u&sasl-password=secret")
    assert "secret" not in shown
    assert shown.startswith("kafka://***@h:1/t?protocol=avro&sasl-user=u")
