-- Ten questions to the tables of an audit, for DuckDB and Spark. Each table is a view of
-- its name.

-- findings: how many of each kind, the worst first
SELECT f.severity, f.kind, f.basis, count(*) AS findings,
  count(DISTINCT f.group_id) AS groups
FROM findings AS f
GROUP BY f.severity, f.kind, f.basis
ORDER BY instr('critical high medium low info', f.severity), f.kind, f.basis;

-- messages: how many were lost or delivered again, by group and topic
SELECT f.chroot, f.group_id, f.topic, f.effect, sum(f.messages) AS messages
FROM findings AS f
WHERE f.effect IN ('lost', 'repeated') AND f.messages > 0
GROUP BY f.chroot, f.group_id, f.topic, f.effect
ORDER BY messages DESC, group_id, f.topic, f.effect;

-- owners: who owned each partition when the logs ended, and since when
SELECT o.chroot, o.group_id, o.topic, o.partition, o.member, o.start_time
FROM ownership AS o
WHERE o.ended = 'still held'
ORDER BY o.chroot, group_id, o.topic, o.partition, o.member;

-- unowned: the longest times between two owners of a partition
SELECT chroot, group_id, topic, partition, member AS owner_before, end_time,
  next_time - end_time AS unowned
FROM (
  SELECT o.chroot, o.group_id, o.topic, o.partition, o.member, o.end_time,
    lead(o.start_time) OVER (
      PARTITION BY o.chroot, o.group_id, o.topic, o.partition
      ORDER BY o.start_zxid, o.start_idx
    ) AS next_time
  FROM ownership AS o
) AS intervals
WHERE next_time > end_time
ORDER BY unowned DESC, group_id, topic, partition
LIMIT 20;

-- strangers: offsets that a session wrote that did not own the partition
SELECT c.chroot, c.group_id, c.topic, c.partition, c.time, c.session,
  c.owner_member, c.previous AS offset_before, c.committed_offset AS offset_after
FROM commits AS c
WHERE c.store = 'zookeeper' AND c.kind = 'commit'
  AND (c.owner_state = 'none' OR c.owner_session <> c.session)
ORDER BY c.zxid, c.idx;

-- regressions: offsets that became lower, and by how much
SELECT c.chroot, c.group_id, c.topic, c.partition, c.time, c.owner_member,
  c.previous - c.committed_offset AS messages
FROM commits AS c
WHERE c.committed_offset < c.previous
ORDER BY messages DESC, c.zxid, c.idx;

-- rebalances: how many in each hour of each group, and the longest one
SELECT r.chroot, r.group_id, date_trunc('hour', r.start_time) AS hour,
  count(*) AS rebalances, sum(r.claims) AS claims, sum(r.refused) AS refused,
  max(r.end_time - r.start_time) AS longest
FROM rebalances AS r
GROUP BY r.chroot, r.group_id, date_trunc('hour', r.start_time)
ORDER BY rebalances DESC, group_id, hour;

-- expiries: members whose sessions expired, the most frequent first
SELECT m.chroot, m.group_id, m.member, count(*) AS expiries,
  max(m.time) AS last_expiry
FROM membership AS m
WHERE m.change = 'leave' AND m.cause = 'expired'
GROUP BY m.chroot, m.group_id, m.member
ORDER BY expiries DESC, group_id, m.member;

-- herds: the changes of membership that woke most members, and how that is known
SELECT h.chroot, h.group_id, h.time, h.change, h.member, h.notified,
  h.rebalances, h.basis, h.cause
FROM herds AS h
WHERE h.notified > 0
ORDER BY h.notified DESC, h.zxid, h.idx, h.member
LIMIT 20;

-- triggers: what made each member rebalance (from journals), with the join or leave
SELECT a.chroot, a.group_id, a.member, a.time, a.basis, a.trigger_zxid,
  a.trigger_path, m.change, m.member AS joined_or_left
FROM attempts AS a
LEFT JOIN membership AS m
  ON m.chroot = a.chroot AND m.group_id = a.group_id AND m.zxid = a.trigger_zxid
WHERE a.trigger_zxid IS NOT NULL
ORDER BY a.time, a.member, joined_or_left;
