from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MeasureRangeReq(_message.Message):
    __slots__ = ("after_ts", "upto_ts", "part_bytes")
    AFTER_TS_FIELD_NUMBER: _ClassVar[int]
    UPTO_TS_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    after_ts: int
    upto_ts: int
    part_bytes: int
    def __init__(self, after_ts: _Optional[int] = ..., upto_ts: _Optional[int] = ..., part_bytes: _Optional[int] = ...) -> None: ...

class MeasureRangeResp(_message.Message):
    __slots__ = ("bytes", "cuts")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    cuts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bytes: _Optional[int] = ..., cuts: _Optional[_Iterable[int]] = ...) -> None: ...

class WriteBinlogsReq(_message.Message):
    __slots__ = ("cluster_id", "payloads")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, cluster_id: _Optional[int] = ..., payloads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WriteBinlogsResp(_message.Message):
    __slots__ = ("refusals",)
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("number", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    text: str
    def __init__(self, number: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class InfoReq(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResp(_message.Message):
    __slots__ = ("cluster_id", "node_id", "store_uuid", "state", "max_commit_ts", "gc_ts", "unmatched_prewrites", "oldest_unmatched_start_ts", "last_error", "late_commits", "early_commits", "status_queries", "lost_commit_ts", "disk_stored", "disk_free", "disk_size")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_UUID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MAX_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    GC_TS_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_PREWRITES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNMATCHED_START_TS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    LATE_COMMITS_FIELD_NUMBER: _ClassVar[int]
    EARLY_COMMITS_FIELD_NUMBER: _ClassVar[int]
    STATUS_QUERIES_FIELD_NUMBER: _ClassVar[int]
    LOST_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    DISK_STORED_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    DISK_SIZE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    node_id: str
    store_uuid: str
    state: str
    max_commit_ts: int
    gc_ts: int
    unmatched_prewrites: int
    oldest_unmatched_start_ts: int
    last_error: str
    late_commits: int
    early_commits: int
    status_queries: int
    lost_commit_ts: _containers.RepeatedScalarFieldContainer[int]
    disk_stored: int
    disk_free: int
    disk_size: int
    def __init__(self, cluster_id: _Optional[int] = ..., node_id: _Optional[str] = ..., store_uuid: _Optional[str] = ..., state: _Optional[str] = ..., max_commit_ts: _Optional[int] = ..., gc_ts: _Optional[int] = ..., unmatched_prewrites: _Optional[int] = ..., oldest_unmatched_start_ts: _Optional[int] = ..., last_error: _Optional[str] = ..., late_commits: _Optional[int] = ..., early_commits: _Optional[int] = ..., status_queries: _Optional[int] = ..., lost_commit_ts: _Optional[_Iterable[int]] = ..., disk_stored: _Optional[int] = ..., disk_free: _Optional[int] = ..., disk_size: _Optional[int] = ...) -> None: ...
