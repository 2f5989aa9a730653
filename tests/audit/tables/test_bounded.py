"""What Spark does with paths of groups agrees with the fold."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from zkaudit import schema
from zkaudit.group import znode_of
from zkaudit.group.znodes import WITH_CHANGES
from zkaudit.history.staging import stage

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine


@pytest.mark.parametrize("group", [None, "g|offsets"])
def test_spark_and_the_fold_read_paths_alike(spark: SparkSession, group: str | None) -> None:
    """Spark sends each row to its group by the path, and the fold reads the same path. Both give
    the same groups and trees, for any name of group, topic and chroot."""
    places = ["", "/kafka", "/consumers/x", "/a/offsets/b"]
    names = ["g", "offsets", "owners", "consumers", "a b", "\u00e4"]
    tails = ["0", "7", "12", "x", "07", "-1", "1-2"]
    paths = [f"{c}/consumers/{g}/{tree}/{t}/{tail}" for c in places for g in names for t in names
             for tree in ("offsets", "owners") for tail in tails]  # fmt: skip
    paths += ["/consumers/g/offsets/t/1/2"]
    alone = ("ids/5", "ids/m", "ids/m/n", "ids", "migration", "live/mode", "live/members/m", "live",
             "record", "record/mirror", "record/mirror/n", "record/lease")  # fmt: skip
    paths += [f"{c}/consumers/{g}/{znode}" for c in places for g in names for znode in alone]
    columns = [column.name for column in schema.TXNLOG]
    fixed = {"server": "s", "file": "f", "position": 0, "idx": 0, "size": 0, "session": 1,
             "cxid": 1, "type": "setData"}  # fmt: skip
    rows = [fixed | {"zxid": zxid, "path": path} for zxid, path in enumerate(paths, 1)]
    values = [tuple(row.get(name) for name in columns) for row in rows]
    staged = stage(spark.createDataFrame(values, schema.spark_type(schema.TXNLOG)), group=group)
    znodes = [znode for path in paths if (znode := znode_of(path))]
    chosen = [z for z in znodes if group is None or z.group in group.split("|")]
    assert {
        tuple(row) for row in staged.rows("names").select("chroot", "group_id", "tree").collect()
    } == {(z.chroot, z.group, z.tree) for z in chosen}
    commits = staged.commits.select("chroot", "group_id", "topic", "partition").collect()
    assert sorted(map(tuple, commits)) == sorted(
        (z.chroot, z.group, z.topic, z.partition) for z in chosen if z.tree == "offsets"
    )
    changes = staged.rows("changes").select("path").collect()
    assert sorted(row["path"] for row in changes) == sorted(
        z.path for z in chosen if z.tree in WITH_CHANGES
    )
