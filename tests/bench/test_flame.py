"""`make flame` processes py-spy's stacks: each is assigned to its stage, without waiting and without local paths."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import flame

LAND = "run (spark_jobs/stages/land.py:%d)"
RAW = "\n".join(
    (
        f"thread (7): land_0;run_stage (spark_jobs/job/stagerun.py:30);{LAND % 40};digest (binlake/lake/rowhash.py:9);"
        "arrow::Take (/x/site-packages/pyarrow/libarrow.so.2100);0x7f00 (libc.so.6) 5",
        f"thread (8): land_1;run_stage (spark_jobs/job/stagerun.py:30);{LAND % 41};digest (binlake/lake/rowhash.py:11);"
        "arrow::Take (/x/site-packages/pyarrow/libarrow.so.2100) 3",
        f"thread (7): land_0;{LAND % 40};read (binlake/lake/parts.py:2);syscall (libc.so.6) 50",
        "thread (7): land_0;measured (bench/x.py:9);Meter.cpu (bench/x.py:7);open64 (libc.so.6) 9",
        "thread (9): pull-1;run (threading.py:980);recv (binlake/rpc/client.py:4) 2",
        "thread (3): MainThread;run (spark_jobs/stages/plan.py:3);asked (binlake/tso.py:3) 1",
    )
)


def test_stack_is_assigned_to_its_stage_and_starts_there() -> None:
    stages = flame.split_by_stage(RAW)
    assert set(stages) == {"land", "plan", "threads"}
    top = ("run (spark_jobs/stages/land.py)", "digest (binlake/lake/rowhash.py)", "arrow::Take (pyarrow/libarrow)")
    assert stages["land"] == {top: 8}
    assert next(iter(stages["threads"]))[0] == "thread pull"


def test_first_frames_are_the_projects_own_with_their_native_leaf() -> None:
    [(frame, share)] = flame.list_top_frames(flame.split_by_stage(RAW)["land"])
    assert frame == "digest (binlake/lake/rowhash.py) > arrow::Take (pyarrow/libarrow)"
    assert share == 1.0


def test_template_name_is_shortened_to_its_last_parts() -> None:
    leaf = "arrow::Visitor<arrow::Binary, void>::Visit<Kernel<arrow::Binary>::Do(int)::{lambda(long)#1}>(Span const&)"
    stacks = flame.split_by_stage(
        f"{LAND % 1};keys (binlake/x.py:1);{leaf} (/x/site-packages/pyarrow/libarrow.so.2100) 1"
    )
    [(frame, _)] = flame.list_top_frames(stacks["land"])
    assert frame == "keys (binlake/x.py) > Visitor::Visit (pyarrow/libarrow)"


def test_picture_shows_each_frame_as_wide_as_its_samples() -> None:
    stacks = flame.split_by_stage(RAW)["land"]
    stacks[("run (spark_jobs/stages/land.py)", "<lambda> (binlake/tso.py)")] = 8
    found = ET.fromstring(flame.draw_picture("land", stacks))
    space = "{http://www.w3.org/2000/svg}"
    widths = {group.find(f"{space}title").text: float(group.find(f"{space}rect").get("width")) for group in found}  # type: ignore[union-attr,arg-type]
    assert widths["land: 16 samples"] == 2 * widths["<lambda> (binlake/tso.py): 8 samples"] == 1200
    assert len(widths) == 5


def test_file_of_stacks_is_read_back() -> None:
    stacks = flame.split_by_stage(RAW)["plan"]
    text = "".join(f"{';'.join(stack)} {count}\n" for stack, count in stacks.items())
    assert flame.fold_text(text) == stacks
