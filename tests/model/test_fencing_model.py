"""Bounded model of claim, commit and release: every interleaving of a few members and messages.

There is one partition with a log of ``messages`` messages. Its members run the whole protocol on an
ideal ZooKeeper. These events can happen at any moment and in any order:

- The server expires a session. The client library gets a new one by itself, and the application
  notices later.
- A request is sent later than it was decided, even after newer requests. A later session of the
  same member may send it (a zombie request).
- The response to a commit is lost.

The search is breadth first, so the trace of a violation is a shortest one.

The model does not include writers that do not follow the protocol, such as a JVM member. It also
omits lost responses to claims and releases, and more than one partition. A member has at most one
zombie request at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.model import search
from tests.model.search import Result

ABSENT = -1  # token of an owner whose partition had no offset znode; also: that znode is missing
NONE = ()

# The state of a member's application.
UNREGISTERED, VERIFYING, IDLE, OWNER, HOLDING, RELEASING = range(6)


class Member(NamedTuple):
    """``session`` is the client library's session, ``believed`` the application's. ``registration``
    is the data version of its registration, 0 if there is none. ``request`` was decided and not yet
    carried out (kind, session in which it was decided, ...). ``zombie`` is the same for an earlier
    session, and its response will be ignored. ``base`` is the last known committed value.
    ``expiries`` counts the expired sessions."""

    session: int
    alive: bool
    registration: int
    believed: int
    doing: int
    position: int
    token: int
    base: int
    request: tuple[object, ...]
    zombie: tuple[object, ...]
    expiries: int


class State(NamedTuple):
    """``owner`` is (member, session) or (). ``offset`` is ABSENT if the znode is missing. All
    messages below ``delivered`` were delivered by some member."""

    owner: tuple[int, int] | tuple[()]
    offset: int
    version: int
    delivered: int
    members: tuple[Member, ...]


class Design(NamedTuple):
    """A protocol. The defaults are ours. A rival or a planted mistake differs in some fields."""

    guard_absent: bool = True  # registration check also if there is no offset znode
    fence_release: bool = True  # release checks registration and token
    touch: bool = True  # claim raises the version of the offset znode
    guard_touch: bool = True  # registration check also if a late offset znode is touched
    verify: bool = True  # after registering: does the znode belong to our session?
    numbered: bool = True  # registration carries the number of the session as its version
    read_first: bool = False  # the position is read before the claim, which does not confirm it
    commit: str = "token"  # token | blind | owner-version | session-id


class Bounds(NamedTuple):
    """Limits of the search. ``versions`` caps the offset znode's version."""

    members: int
    messages: int
    expiries: int
    versions: int
    offset: int


OURS = Design()
BLIND = Design(touch=False, fence_release=False, commit="blind")
RIVALS = {
    "reference order": BLIND._replace(read_first=True),
    "claim, then read": BLIND,
    "owner version": BLIND._replace(commit="owner-version"),
    "session id": BLIND._replace(commit="session-id"),
}
MISTAKES = {
    "release without fence": OURS._replace(fence_release=False),
    "absent offset without registration check": OURS._replace(guard_absent=False),
    "touch without registration check": OURS._replace(guard_touch=False),
    "registration without session number": OURS._replace(numbered=False),
    "registration not verified": OURS._replace(verify=False),
}

Step = tuple[str, State]


def _with(s: State, i: int, m: Member, **changes: Any) -> State:
    members = (*s.members[:i], m, *s.members[i + 1 :])
    return s._replace(members=members, **changes) if changes else State(*s[:4], members)


def _reset(m: Member, doing: int) -> Member:
    return m._replace(doing=doing, position=0, token=0, base=0)


def _hold(m: Member, position: int, token: int) -> Member:
    return m._replace(doing=HOLDING, position=position, token=token, base=position)


def steps(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """Every possible next step."""
    for i, m in enumerate(s.members):
        if m.alive and m.expiries < b.expiries:
            owner = NONE if s.owner == (i, m.session) else s.owner
            dead = m._replace(alive=False, registration=0, expiries=m.expiries + 1)
            yield f"expire {i}", _with(s, i, dead, owner=owner)
        if not m.alive:
            yield f"resession {i}", _with(s, i, m._replace(alive=True, session=m.session + 1))
        if m.believed != m.session:
            told = _reset(m, UNREGISTERED)._replace(
                believed=m.session, request=NONE, zombie=m.request or m.zombie
            )
            yield f"notice {i}", _with(s, i, told)
        if m.doing == HOLDING and m.position < b.messages:
            ahead = m._replace(position=m.position + 1)
            delivered = max(s.delivered, ahead.position)
            yield f"deliver {i} {m.position}", _with(s, i, ahead, delivered=delivered)
        if m.zombie != NONE and m.alive:
            yield from _carry_out(s, i, m, m.zombie, d, b)
        if m.request == NONE:
            yield from _decide(s, i, m, d)
        elif m.alive:
            yield from _carry_out(s, i, m, m.request, d, b)


def _decide(s: State, i: int, m: Member, d: Design) -> Iterator[Step]:
    """The next step of a member whose application has no pending request. Reads are immediate."""

    def ask(doing: int, *request: object) -> State:
        return _with(s, i, m._replace(doing=doing, request=request))

    k = m.believed
    if m.doing == UNREGISTERED:
        yield f"ask register {i}", ask(UNREGISTERED, "register", k, m.registration)
    elif m.doing == VERIFYING and m.alive:
        # The registration's ephemeral owner, compared with the session that the application knows.
        number = k if d.numbered else 1
        ours = m.registration != 0 and (not d.verify or (m.registration, m.session) == (number, k))
        yield f"verify {i}", _with(s, i, m._replace(doing=IDLE if ours else UNREGISTERED))
    elif m.doing == IDLE and m.alive:
        if s.offset == ABSENT:
            yield f"read {i}: none", ask(IDLE, "claim absent", k)
        elif d.touch or d.read_first:
            yield f"read {i}: {s.offset}", ask(IDLE, "claim", k, s.offset, s.version)
        else:
            yield f"ask claim {i}", ask(IDLE, "claim absent", k)
    elif m.doing == OWNER and m.alive:
        if s.offset == ABSENT:
            yield f"read again {i}: none", _with(s, i, _hold(m, 0, ABSENT))
        elif d.touch:
            yield f"read again {i}: {s.offset}", ask(OWNER, "touch", k, s.offset, s.version)
        else:
            yield f"read {i}: {s.offset}", _with(s, i, _hold(m, s.offset, s.version))
    elif m.doing == HOLDING:
        if m.position > m.base and (d.commit != "session-id" or m.session == k):
            yield f"ask commit {i}", ask(HOLDING, "commit", k, m.token, m.position)
        yield f"ask release {i}", ask(RELEASING, "release", k, m.token)


def _carry_out(
    s: State, i: int, m: Member, request: tuple[object, ...], d: Design, b: Bounds
) -> Iterator[Step]:
    """The request reaches the server, in the library's current session, and is answered."""
    stale = request is m.zombie
    kind, k, *rest = request
    assert isinstance(k, int)
    number = k if d.numbered else 1
    registered = m.registration == number
    free = s.owner == NONE
    idle = m._replace(zombie=NONE) if stale else m._replace(request=NONE)
    mine = (i, m.session)
    room = s.version < b.versions

    def answer(name: str, after: Member, **server: Any) -> Step:
        """A stale reply changes nothing in the application, although the server has executed the
        request."""
        return f"{'zombie ' * stale}{name} {i}", _with(s, i, idle if stale else after, **server)

    if kind == "register":
        (seen,) = rest  # version of the registration to replace, 0 if there was none
        if m.registration != seen:
            yield answer("register refused", idle)
        else:
            there = idle._replace(registration=number)
            done = there if stale else there._replace(doing=VERIFYING)
            yield f"{'zombie ' * stale}register {i}", _with(s, i, done)
    elif kind == "claim absent":
        checked = registered or not d.guard_absent or not d.touch
        if checked and free:
            yield answer("claim", idle._replace(doing=OWNER), owner=mine)
        else:
            yield answer("claim refused", idle)
    elif kind == "claim":
        offset, version = rest
        assert isinstance(offset, int)
        assert isinstance(version, int)
        if not free or (d.touch and not (registered and s.version == version)):
            yield answer("claim refused", idle)
        elif not d.touch:
            yield answer("claim", _hold(idle, offset, version), owner=mine)
        elif room:
            held = _hold(idle, offset, version + 1)
            yield answer("claim", held, owner=mine, version=version + 1)
    elif kind == "touch":
        offset, version = rest
        assert isinstance(offset, int)
        assert isinstance(version, int)
        if s.version != version or not (registered or not d.guard_touch):
            yield answer("touch refused", idle)
        elif room:
            yield answer("touch", _hold(idle, offset, version + 1), version=version + 1)
    elif kind == "commit":
        token, new = rest
        assert isinstance(token, int)
        assert isinstance(new, int)
        if d.commit == "token":
            checked = registered or (token == ABSENT and not d.guard_absent)
            passes = checked and (
                s.offset == ABSENT if token == ABSENT else s.version == token != ABSENT
            )
        else:
            passes = d.commit != "owner-version" or not free
        version = 0 if s.offset == ABSENT else s.version + 1
        if not passes:
            yield answer("commit refused", _reset(idle, IDLE))
        elif room:
            server = {"offset": new, "version": version}
            yield answer("commit", idle._replace(base=new, token=version), **server)
            if not stale and d.commit == "token":
                unsure = m._replace(request=("look", k, token, new))
                yield f"commit, reply lost {i}", _with(s, i, unsure, **server)
    elif kind == "look":
        token, new = rest
        assert isinstance(token, int)
        assert isinstance(new, int)
        if (s.offset, s.version) == (new, 0 if token == ABSENT else token + 1):
            yield answer("look: applied", idle._replace(base=new, token=s.version))
        elif (s.offset == ABSENT) if token == ABSENT else (s.version == token):
            yield answer("look: not applied", idle)
        else:
            yield answer("look: fenced", _reset(idle, IDLE))
    else:
        (token,) = rest
        fence = registered and (token == ABSENT or s.version == token)
        left = _reset(idle, IDLE)
        if (fence or not d.fence_release) and not free:
            yield answer("release", left, owner=NONE)
        else:
            yield answer("release refused", left)


def violations(s: State, name: str, t: State) -> Iterator[str]:
    """The promises that the step ``name`` from ``s`` to ``t`` violates."""
    if t.offset < s.offset:
        yield "committed offset went backwards"
    if t.offset > t.delivered:
        yield "message skipped"
    live = 0
    for i, m in enumerate(t.members):
        if m.alive and m.believed == m.session:
            ours = t.owner == (i, m.session)
            if m.doing == HOLDING:
                live += 1
                if not ours:
                    yield "live holder lost its owner znode"
            elif ours and m.doing in (UNREGISTERED, VERIFYING, IDLE) and m.request == NONE:
                yield "owner znode nobody holds"
    if live > 1:
        yield "two live owners"
    verb, _, rest = name.partition(" ")
    if verb == "deliver":
        m = s.members[int(rest.split()[0])]
        held = s.owner == (int(rest.split()[0]), m.session) and m.believed == m.session
        if held and m.position < s.offset:
            yield "owner re-delivered what was committed"


def start(b: Bounds) -> State:
    """All members are registered in their first session, and nothing is owned."""
    member = Member(1, True, 1, 1, IDLE, 0, 0, 0, NONE, NONE, 0)
    return State(NONE, b.offset, 0, 0, (member,) * b.members)


def mirror(s: State) -> State:
    """The same state with its two members exchanged."""
    owner = s.owner and (1 - s.owner[0], s.owner[1])
    return State(owner, *s[1:4], s.members[::-1])


def explore(d: Design, b: Bounds, wanted: frozenset[str] = frozenset()) -> Result[State]:
    """Visit every reachable state. With ``wanted``, stop as soon as all those violations are
    found."""
    assert b.members == 2
    return search.explore(
        start(b), lambda state: steps(state, d, b), violations, wanted, mirror=mirror
    )


@pytest.mark.parametrize(
    ("bounds", "at_least", "must_happen"),
    [
        (
            Bounds(members=2, messages=2, expiries=1, versions=4, offset=0),
            250_000,
            "claim 0|zombie claim refused 0|commit 0|zombie commit refused 0|commit, reply lost 0|"
            "release 0|zombie release refused 0|look: applied 0",
        ),
        (
            Bounds(members=2, messages=2, expiries=1, versions=3, offset=ABSENT),
            250_000,
            "claim 0|zombie claim refused 0|touch 0|zombie touch refused 0|commit 0|release 0|"
            "zombie commit refused 0|zombie release refused 0|read again 0: none",
        ),
        (
            Bounds(members=2, messages=1, expiries=2, versions=1, offset=ABSENT),
            500_000,
            "zombie register 0|zombie register refused 0|zombie claim refused 0|commit 0|release 0",
        ),
    ],
    ids=["offset present", "offset missing", "two expiries each"],
)
def test_the_protocol_keeps_its_promises(bounds: Bounds, at_least: int, must_happen: str) -> None:
    """No interleaving lets an offset go back, skips a message, or takes a partition from a live
    owner.

    Also, there are never two live owners, and an owner does not repeat a message after its commit.
    No owner znode remains that no application uses. The search must have visited the dangerous
    steps, so the empty result does not come from an empty search.
    """
    result = explore(OURS, bounds)
    assert result.found == {}
    assert result.states >= at_least
    assert set(must_happen.split("|")) <= result.taken


@pytest.mark.parametrize("offset", [0, ABSENT], ids=["offset present", "offset missing"])
@pytest.mark.parametrize("rival", RIVALS)
def test_the_model_catches_the_rival_designs(rival: str, offset: int) -> None:
    """Each known weaker design violates all the promises that it is known to violate."""
    bounds = Bounds(members=2, messages=2, expiries=1, versions=3, offset=offset)
    known = frozenset(
        {
            "committed offset went backwards",
            "live holder lost its owner znode",
            "owner re-delivered what was committed",
            "two live owners",
        }
    )
    assert known <= explore(RIVALS[rival], bounds, known).found.keys()


@pytest.mark.parametrize(
    ("mistake", "expiries", "found"),
    [
        ("release without fence", 1, "live holder lost its owner znode"),
        ("absent offset without registration check", 1, "owner znode nobody holds"),
        ("touch without registration check", 1, "owner znode nobody holds"),
        ("registration without session number", 1, "owner znode nobody holds"),
        ("registration not verified", 2, "owner znode nobody holds"),
    ],
)
def test_every_part_of_the_protocol_is_needed(mistake: str, expiries: int, found: str) -> None:
    """Without any one of its parts our protocol violates a promise, so each part is necessary."""
    bounds = Bounds(members=2, messages=1, expiries=expiries, versions=2, offset=ABSENT)
    assert list(explore(MISTAKES[mistake], bounds, frozenset({found})).found) == [found]
