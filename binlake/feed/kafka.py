"""Publishes messages to Kafka exactly once: messages and the new position are one Kafka transaction.

The position of each feed is the last record with its name in the compacted topic POSITIONS. Opening a feed aborts the
open transaction of a former publisher and fences that publisher (KIP-98), then continues after the position. Without
transactions the producer is idempotent, and the position is written after the messages: after a crash a message may be
sent twice, but never out of order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_fixed

from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.lakecolumns import Message
from binlake.config.sinkuri import KafkaConnection
from binlake.errors import BinlakeError, Fenced, Permanent, Transient
from binlake.feed.kafkaclient import TIMEOUT_S, TOO_LARGE, build_client_settings, convert_error, format_key
from binlake.feed.manifest import ChangePosition
from binlake.lake.tables import MESSAGE

_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
Headers = list[tuple[str, str | bytes | None]]
POSITIONS = "binlake-feed-positions"
"""The topic with each feed's position: key = the feed, value = `commit_ts-start_ts-seq`."""
_COMPACT = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.01"}


class KafkaPublisher:
    """The only publisher of `feed`. `position`: the last change that was sent; None at first."""

    def __init__(self, kafka: KafkaConnection, feed: str, *, transactions: bool = True) -> None:
        """Connects at `__enter__`. `feed`: a name that is unique among all feeds that share the brokers."""
        self._kafka, self._feed, self._transactions = kafka, feed, transactions
        self._where = {"feed": feed, "brokers": ",".join(kafka.brokers)}
        self._failures: list[BinlakeError] = []
        self._fenced = False
        self._partitions: dict[str, int] = {}
        self._sending: pa.Table = MESSAGE.build_arrow_schema().empty_table()
        self.position: ChangePosition | None = None

    def __enter__(self) -> KafkaPublisher:
        """Fence the former publisher and read the position. Raises Transient, Permanent."""
        try:
            self._admin = AdminClient(build_client_settings(self._kafka))
            self.ensure_topics([POSITIONS])
            self._producer = Producer(self._build_settings())
            if self._transactions:
                self._producer.init_transactions(TIMEOUT_S)
            self.position = self._read_position()
        except KafkaException as error:
            raise convert_error(error, self._where) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Queued messages belong to an uncommitted transaction or to no transaction.
        self._producer.purge()
        # `close` would end the transaction, but a fenced producer no longer has one.
        if not self._fenced:
            self._close(error)

    def _close(self, cause: BaseException | None) -> None:
        try:
            self._producer.close()
        except KafkaException as error:
            # A failed producer may also fail to close. That must not hide the cause.
            if cause is None:
                raise convert_error(error, self._where) from error
            cause.add_note(f"the producer could not be closed: {error}")

    def ensure_topics(self, topics: Iterable[str]) -> None:
        """Create missing topics, and read the number of partitions of each. Raises Transient, Permanent."""
        wanted = sorted({topic for topic in topics if topic not in self._partitions})
        if not wanted:
            return
        try:
            sizes = self._count_partitions(wanted)
            missing = [topic for topic in wanted if topic not in sizes]
            if missing:
                self._create(missing)
                # Other brokers learn about a new topic a little later.
                again = Retrying(retry=retry_if_result(_is_short_of(wanted)), stop=stop_after_delay(TIMEOUT_S),
                                 wait=wait_fixed(0.1), retry_error_callback=_return_last_answer)  # fmt: skip
                sizes = again(self._count_partitions, wanted)
        except KafkaException as error:
            raise convert_error(error, self._where) from error
        if len(sizes) < len(wanted):
            left = ",".join(topic for topic in wanted if topic not in sizes)
            raise Transient("new topics do not appear", where={**self._where, "topics": left}, hint="check the brokers")
        self._partitions |= sizes

    def _count_partitions(self, topics: Collection[str]) -> dict[str, int]:
        known = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    def publish(self, messages: pa.Table, position: ChangePosition) -> None:
        """Send the messages in order, and record `position` as the feed's position.

        Raises Permanent for a message that Kafka refuses, Fenced when another publisher took over, else Transient.
        Consumers that read only committed messages see no messages of a failed call. After a failure the publisher must
        be opened again, which reads the position.
        """
        self.ensure_topics(pc.unique(messages.column(Message.TOPIC)).to_pylist())
        self._commit(messages, position)

    def forget(self) -> None:
        """Delete the feed's position, so that the next publisher with its name starts anew. Raises as `publish`."""
        self._commit(None, None)

    def _commit(self, messages: pa.Table | None, position: ChangePosition | None) -> None:
        try:
            if self._transactions:
                self._producer.begin_transaction()
            if messages is not None:
                self._send(messages)
                if not self._transactions:
                    self._flush()
            text = None if position is None else position.to_text().encode()
            self._produce(POSITIONS, 0, self._feed.encode(), text, None)
            self._flush()
            if self._transactions:
                self._producer.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            raise self._abort_transaction(convert_error(error, self._where)) from error
        except BinlakeError as error:
            raise self._abort_transaction(error) from error
        self.position = position

    def _send(self, messages: pa.Table) -> None:
        """Queue all messages. librdkafka's binding requires a Python loop over messages."""
        self._sending, produce = messages, self._producer.produce
        rows, topics, partitions = self._choose_partitions(messages)
        columns = (rows.column(name).to_pylist() for name in (Message.KEY, Message.VALUE, Message.COMMIT_TS))
        for key, value, commit_ts, topic, partition in zip(*columns, topics, partitions, strict=True):
            try:
                if value is None:
                    produce(topic, None, key, partition, headers=_build_tombstone_headers(commit_ts))
                else:
                    produce(topic, value, key, partition)
            except BufferError:
                self._produce(
                    topic, partition, key, value, _build_tombstone_headers(commit_ts) if value is None else None
                )
            except KafkaException as error:
                raise self._build_message_error(error.args[0], topic, key, value) from error

    def _choose_partitions(self, messages: pa.Table) -> tuple[pa.Table, list[str], list[int]]:
        """The messages with their topics and partitions. A message without a hash is repeated for every partition."""
        topics = encode_dictionary(messages.column(Message.TOPIC))
        names, which = topics.dictionary.to_pylist(), np.asarray(topics.indices)
        sizes = np.array([self._partitions[topic] for topic in names], np.int64)[which]
        hashes = messages.column(Message.HASH).combine_chunks()
        partitions = np.asarray(hashes.fill_null(0)) % sizes
        if hashes.null_count:
            copies = np.where(np.asarray(hashes.is_valid()), 1, sizes)
            rows = np.repeat(np.arange(len(copies)), copies)
            number = np.arange(len(rows)) - (np.cumsum(copies) - copies)[rows]
            messages, which, partitions = messages.take(pa.array(rows)), which[rows], partitions[rows] + number
        return messages, [names[number] for number in which.tolist()], partitions.tolist()

    def _build_message_error(
        self, problem: KafkaError, topic: str, key: bytes | None, value: bytes | None
    ) -> BinlakeError:
        """Kafka's error for one message, with the message's size if it is too large."""
        if problem.code() not in TOO_LARGE:
            return convert_error(KafkaException(problem), self._where)
        limit = self._kafka.max_message_bytes
        size = len(key or b"") + len(value or b"")
        about = {"table": self._find_table(topic), "topic": topic, "key": format_key(key), "bytes": size,
                 "max-message-bytes": limit}  # fmt: skip
        return convert_error(KafkaException(problem), {**self._where, **about})

    def _find_table(self, topic: str) -> str:
        """The table that is sent to `topic`, from the messages being sent."""
        first = self._sending.filter(pc.equal(self._sending.column(Message.TOPIC), topic)).slice(0, 1).to_pylist()
        return next((f"{row[Message.DB]}.{row[Message.TABLE]}" for row in first), "")

    def _produce(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers | None
    ) -> None:
        """Queue one message; wait while the queue is full."""
        more: dict[str, Any] = {"headers": headers} if headers else {}
        while True:
            try:
                self._producer.produce(topic, value, key, partition, **more)
                return
            except BufferError:
                self._producer.poll(0.1)
                self._require_delivered()

    def _on_delivered(self, error: KafkaError | None, message: Delivered) -> None:
        # Messages that we have purged are not failures.
        if error is not None and error.code() not in _PURGED:
            self._failures.append(
                self._build_message_error(error, message.topic() or "", message.key(), message.value())
            )

    def _note_fatal(self, error: KafkaError) -> None:
        if error.fatal():
            self._failures.append(convert_error(KafkaException(error), self._where))

    def _flush(self) -> None:
        # `flush` cannot be used: if the producer is fenced meanwhile, it raises a SystemError (confluent-kafka 2.16).
        end = time.monotonic() + TIMEOUT_S
        while left := len(self._producer):
            self._producer.poll(0.1)
            self._require_delivered()
            if time.monotonic() > end:
                raise Transient(
                    "Kafka has not accepted all messages in time",
                    where={**self._where, "messages": left},
                    hint="check the brokers",
                )
        self._require_delivered()

    def _require_delivered(self) -> None:
        if self._failures:
            # After one refused message, the following ones fail for other reasons. A broker refuses a batch as a whole,
            # because of its largest message.
            refused = [error for error in self._failures if isinstance(error, Permanent)]
            raise max(refused, key=lambda error: int(error.where.get("bytes", 0)), default=self._failures[0])

    def _abort_transaction(self, error: BinlakeError) -> BinlakeError:
        """Abort the open transaction unless the producer is fenced. Returns `error`, or Fenced if that is its cause."""
        self._fenced = isinstance(error, Fenced)
        if self._transactions and not self._fenced:
            try:
                self._producer.abort_transaction(TIMEOUT_S)
            except KafkaException as second:
                cause = convert_error(second, self._where)
                # Fenced in the background, the producer said only "fatal error" to the call that failed.
                self._fenced = isinstance(cause, Fenced)
                if self._fenced:
                    return cause
                # The next publisher aborts the transaction when it starts.
                error.add_note(f"the transaction could not be aborted: {second}")
        return error

    def _create(self, topics: Sequence[str]) -> None:
        if not self._kafka.auto_create_topic:
            raise Permanent(
                "topics do not exist and the feed must not create them",
                where={**self._where, "topics": ",".join(topics)},
                hint="create them, or remove auto-create-topic from the sink URI",
            )
        copies = self._kafka.replication_factor
        new = [
            NewTopic(topic, 1, copies, config=_COMPACT)
            if topic == POSITIONS
            else NewTopic(topic, self._kafka.partitions or -1, copies)
            for topic in topics
        ]
        for done in self._admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
            try:
                done.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _read_position(self) -> ChangePosition | None:
        settings = {
            "group.id": f"binlake-{self._feed}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        with Consumer(build_client_settings(self._kafka) | settings) as consumer:
            consumer.assign([TopicPartition(POSITIONS, 0, OFFSET_BEGINNING)])
            position = None
            while True:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise Transient("Kafka does not answer", where=self._where, hint="check the brokers")
                problem = message.error()
                if problem is None:
                    if message.key() == self._feed.encode():
                        value = message.value()
                        position = ChangePosition.from_text(value.decode()) if value else None
                elif problem.code() == KafkaError._PARTITION_EOF:
                    return position
                else:
                    raise KafkaException(problem)

    def _build_settings(self) -> dict[str, Any]:
        settings = build_client_settings(self._kafka) | {
            # Without this callback, librdkafka raises fatal errors at arbitrary calls.
            "error_cb": self._note_fatal,
            # A call to Python for each delivered message would cost as much as sending the message.
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivered,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": self._kafka.compression,
            "message.max.bytes": self._kafka.max_message_bytes,
            "linger.ms": 20,
        }
        return settings | ({"transactional.id": f"binlake-{self._feed}"} if self._transactions else {})


def _build_tombstone_headers(commit_ts: int) -> Headers:
    """The header with the commit_ts of a tombstone, which has no value (MISSION S2-48)."""
    return [("tidb_commit_ts", str(commit_ts).encode())]


def _is_short_of(topics: Collection[str]) -> Callable[[dict[str, int]], bool]:
    return lambda sizes: len(sizes) < len(topics)


def _return_last_answer(state: RetryCallState) -> Any:
    return state.outcome.result() if state.outcome else {}
