"""A feed's access to Kafka: librdkafka's settings, and the mapping of its errors to Binlake's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from binlake.common.secrets import resolve_secret
from binlake.config.sinkuri import KafkaConnection
from binlake.errors import BinlakeError, Fenced, Permanent, Transient

TIMEOUT_S = 30.0
_SHOWN = 200
"""The number of bytes of a key that errors show."""
_ANSWER_S = 10.0
"""The time in which a broker must answer."""
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)
_REFUSED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
)


def convert_error(error: KafkaException, where: Mapping[str, object]) -> BinlakeError:
    """Kafka's error as Binlake's Fenced, Permanent or Transient."""
    problem: KafkaError = error.args[0]
    words = f"Kafka: {problem.str()}"
    if problem.code() in _FENCED:
        return Fenced(words, where=where, hint="another publisher of this feed has taken over")
    if problem.code() in TOO_LARGE:
        return Permanent(
            words,
            where=where,
            hint="raise max-message-bytes in the sink URI and max.message.bytes of the topic, or leave the table out",
        )
    if problem.code() in _REFUSED:
        return Permanent(words, where=where, hint="check the permissions of the feed's user and the sink URI")
    return Transient(words, where=where, hint="check the brokers")


def require_brokers(kafka: KafkaConnection) -> None:
    """Require that a broker answers and accepts the feed. Raises Transient, Permanent."""
    where = {"brokers": ",".join(kafka.brokers)}
    # On a refused connection the client only reports its own timeout, so collect the errors.
    problems: list[KafkaError] = []
    try:
        AdminClient(build_client_settings(kafka) | {"error_cb": problems.append}).list_topics(timeout=_ANSWER_S)
    except KafkaException as error:
        errors = [convert_error(KafkaException(problem), where) for problem in problems]
        raise next((each for each in errors if isinstance(each, Permanent)), convert_error(error, where)) from None


def build_client_settings(kafka: KafkaConnection) -> dict[str, Any]:
    """Settings that consumer, producer and admin client share. Raises ConfigError for a secret that is not set."""
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(kafka.brokers),
        "client.id": kafka.client_id or "binlake",
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        # Errors are reported by callbacks. librdkafka's own log lines would be unstructured text in our log.
        "log_level": 0,
    }
    if kafka.sasl_mechanism:
        settings |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": resolve_secret(kafka.sasl_user, "sasl-user", "user"),
            "sasl.password": resolve_secret(kafka.sasl_password, "sasl-password"),
        }
    files = {"ssl.ca.location": kafka.ca, "ssl.certificate.location": kafka.cert, "ssl.key.location": kafka.key}
    settings |= {name: file for name, file in files.items() if file}
    protocol = ("SASL_" if kafka.sasl_mechanism else "") + ("SSL" if kafka.tls else "PLAINTEXT")
    return settings | {"security.protocol": protocol}


def format_key(key: bytes | None) -> str:
    """A message's key for people: its text, or hex if it is not a text."""
    text = (key or b"").decode(errors="replace")[:_SHOWN]
    return text if text.isprintable() and "\ufffd" not in text else f"0x{(key or b'')[:_SHOWN].hex().upper()}"
