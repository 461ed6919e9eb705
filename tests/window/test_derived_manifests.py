"""Manifests of merge and compact: they are read back unchanged, and altered or foreign ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.ddl.definitions import Shapes, TableShape
from binlake.errors import DamagedManifest
from binlake.window.derived import CompactManifest, Merged, MergeManifest, require_manifest_of
from binlake.window.manifest import ApplyManifest, seal

TS = st.integers(0, 2**63 - 1)
NAME = st.text(max_size=8)
NAMES = st.lists(NAME, max_size=3).map(tuple)
MERGED = st.builds(Merged, st.integers(0), st.integers(0), st.booleans(), NAMES)
SHAPE = st.builds(TableShape, NAMES, NAMES, NAMES, st.lists(NAMES, max_size=2).map(tuple))
SHAPES = st.dictionaries(st.tuples(NAME, NAME), SHAPE, max_size=3).map(Shapes)
CUTS = st.lists(TS, max_size=3).map(tuple)
COMPACT = st.builds(
    CompactManifest, NAME, st.just("sql"), TS, TS, st.booleans(), st.integers(0), MERGED, CUTS, SHAPES
)  # fmt: skip
MERGE = st.builds(MergeManifest, NAME, TS, TS, MERGED)


@given(st.one_of(COMPACT, MERGE))
def test_sealed_manifest_is_read_back(manifest: CompactManifest | MergeManifest) -> None:
    text = manifest.to_json()
    assert type(manifest).from_json(text) == manifest
    assert type(manifest).from_json(text).to_json() == text
    body = json.loads(text)["body"]
    assert (body["lo"], body["hi"]) == (str(manifest.lo), str(manifest.hi))


@given(COMPACT, st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_the_order_of_tables(manifest: CompactManifest, random) -> None:  # type: ignore[no-untyped-def]
    tables = list(manifest.shapes.at_lo.items())
    random.shuffle(tables)
    other = CompactManifest(**{**vars(manifest), "shapes": Shapes(dict(tables))})
    assert other.compute_digest() == manifest.compute_digest()


@given(COMPACT, COMPACT)
def test_other_manifests_have_other_digests(one: CompactManifest, other: CompactManifest) -> None:
    assert (one.compute_digest() == other.compute_digest()) == (one == other)


@given(st.one_of(COMPACT, MERGE), st.data())
def test_text_changed_or_cut_anywhere_is_refused_or_equivalent(
    manifest: CompactManifest | MergeManifest, data: st.DataObject
) -> None:
    text = manifest.to_json()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = (
        text[:at] + data.draw(st.characters(max_codepoint=0x2FF)) + text[at + data.draw(st.sampled_from([0, 1])) :]
    )
    for broken in (changed, text[:at]):
        try:
            found = type(manifest).from_json(broken)
        except DamagedManifest:
            continue
        # White space, or another escape of the same letter, does not change the meaning.
        assert found == manifest


@given(MERGE)
def test_manifest_of_another_stage_is_not_compacts(manifest: MergeManifest) -> None:
    with pytest.raises(DamagedManifest, match="not a compact manifest"):
        CompactManifest.from_json(manifest.to_json())


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", "7", '{"lo": null}', '{"kind":"compact","version":1,"body":[]}']
)
def test_invalid_manifest_is_refused(text: str) -> None:
    with pytest.raises(DamagedManifest):
        CompactManifest.from_json(text)


def test_another_version_and_missing_values_are_named() -> None:
    merged = Merged(1, 0, True, ("1-2",))
    body = {"replication": "r", "lo": 1, "hi": 2, "merged": merged.to_body()}
    assert MergeManifest.from_json(seal("merge", 1, body)) == MergeManifest("r", 1, 2, merged)
    with pytest.raises(DamagedManifest, match=r"another version of Binlake sealed the merge manifest.*sealed=2"):
        MergeManifest.from_json(seal("merge", 2, body))
    with pytest.raises(DamagedManifest, match="lacks a value"):
        MergeManifest.from_json(seal("merge", 1, {**body, "merged": {"rows": 1}}))


def test_manifest_is_valid_only_for_its_own_window() -> None:
    manifest = MergeManifest("r", 1, 2, Merged(1, 0, True, ("1-2",)))
    assert require_manifest_of(manifest, "r", 1, 2) is manifest
    for name, lo, hi in (("s", 1, 2), ("r", 0, 2), ("r", 1, 3)):
        with pytest.raises(DamagedManifest, match=r"to another window.*sealed_for=r 1-2"):
            require_manifest_of(manifest, name, lo, hi)


def test_apply_manifest_of_an_older_version_keeps_its_digest() -> None:  # targets hold windows open by it
    older = ApplyManifest("r", "sql", 1, 2, 3, "c", "safe", "d", "ch", "st", 1, 4, 9, ("2-3",))
    assert '"compact"' not in older.to_json()
    assert ApplyManifest.from_json(older.to_json()) == older
    newer = ApplyManifest("r", "sql", 1, 2, 3, "c", "safe", "d", "ch", "st", 1, 4, 9, ("2-3",), (), "rests on")
    assert ApplyManifest.from_json(newer.to_json()) == newer
    assert newer.compute_digest() != older.compute_digest()


def test_parts_of_a_range_are_joined() -> None:
    parts = [Merged(1, 0, True, ("1-2",)), Merged(2, 3, False, ("2-9",))]
    assert Merged.add_up(parts) == Merged(3, 3, False, ("1-2", "2-9"))
    assert Merged.add_up(parts[:1]) == parts[0]
    assert Merged.add_up([]).empty
    assert not Merged(0, 1, True, ()).empty
