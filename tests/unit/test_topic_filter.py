"""Topic filters: cleaning, matching and expanding registrations."""

from __future__ import annotations

import json
import time

import pytest

from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.topic_filter import Blacklist, TopicFilter, Whitelist, clean_regex
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import decode_registration, encode_registration
from zkconsumer.errors import ConfigError, ZnodeFormatError

PATH = "/consumers/g/ids/g_c1"
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def white(regex: str, streams: int = 1) -> Subscription:
    """A white list registration."""
    return Subscription(Pattern.WHITE_LIST, {regex: streams})


def black(regex: str, streams: int = 1) -> Subscription:
    """A black list registration."""
    return Subscription(Pattern.BLACK_LIST, {regex: streams})


def test_whitelists() -> None:
    """Scala TopicFilterTest.testWhitelists."""
    commas = Whitelist("white1,white2")
    for exclude in (True, False):
        assert commas.allows("white2", exclude)
        assert not commas.allows("black1", exclude)
    everything = Whitelist(".+")
    assert everything.allows("alltopics", True)
    for internal in (OFFSETS, TRANSACTIONS):
        assert not everything.allows(internal, True)
        assert everything.allows(internal, False)
    prefix = Whitelist("white_listed-topic.+")
    assert prefix.allows("white_listed-topic1", True)
    assert not prefix.allows("black1", True)
    ahead = Whitelist(r"test-(?!bad\b)[\w]+")
    assert ahead.allows("test-good", True)
    assert not ahead.allows("test-bad", True)


def test_blacklists() -> None:
    """Scala TopicFilterTest.testBlacklists."""
    denied = Blacklist("black1")
    for exclude in (True, False):
        assert denied.allows("white2", exclude)
        assert not denied.allows("black1", exclude)
    assert not denied.allows(OFFSETS, True)
    assert denied.allows(OFFSETS, False)


@pytest.mark.parametrize(
    ("regex", "stored"),
    [
        ("-foo", '"-foo"'),
        ("foo-bar", '"foo-bar"'),
        ('q"uote', r'"q\"uote"'),
        ('q"uote"d.', r'"q\"uote\"d."'),
        (r"a\.b", r'"a\\.b"'),
        (r"\d+", r'"\\d+"'),
        (r"a\\b", r'"a\\\\b"'),
        (r"\Qa\E", r'"\\Qa\\E"'),
        ("a/b", '"a/b"'),
        (r"a\/b", r'"a\\/b"'),
        (r"a\"b", r'"a\\\"b"'),
        ("a\x07b", '"a\\u0007b"'),
    ],
)
def test_wildcard_topic_count_get_topic_count_map_escape_json(regex: str, stored: str) -> None:
    """Scala testWildcardTopicCountGetTopicCountMapEscapeJson: escaped once, and read back
    unchanged."""
    data = encode_registration(white(regex, 3), 1)
    assert data.startswith(b'{"version":1,"subscription":{' + stored.encode() + b":3},")
    assert json.loads(data)["subscription"] == {regex: 3}
    assert decode_registration(PATH, data) == white(regex, 3)


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("white1,white2", "white1|white2"),
        (' "t1 , t2" ', "t1|t2"),
        ("a b,c", "ab|c"),
        ('""', ""),
        ("'\"'t'\"'", "t"),
        ("\t\x00t\n", "t"),
        ("a'b", "a'b"),
        ("a\tb", "a\tb"),
    ],
)
def test_cleaning(raw: str, cleaned: str) -> None:
    """The text is cleaned as in the JVM. Cleaning it again changes nothing."""
    assert clean_regex(raw) == cleaned == clean_regex(cleaned)
    assert Whitelist(raw).regex == cleaned


def test_empty_filter_matches_no_topic() -> None:
    """Two quotes are an empty regex, which matches only an empty name."""
    assert not Whitelist('""').allows("t", True)
    assert Blacklist('""').allows("t", True)


@pytest.mark.parametrize("raw", ["a{1,2}", "*", "(a", "[a", r"\y"])
def test_invalid_regex_is_a_config_error_that_names_it(raw: str) -> None:
    """A user's invalid regex fails at once, and the error names it."""
    for kind in (Whitelist, Blacklist):
        with pytest.raises(ConfigError) as caught:
            kind(raw)
        assert repr(clean_regex(raw)) in str(caught.value)


def test_filters_are_values() -> None:
    """Filters with equal kind and regex are equal. They cannot be changed."""
    assert Whitelist("a , b") == Whitelist("a|b") != Blacklist("a|b")
    assert (Whitelist("a").pattern, Whitelist("a").regex) == (Pattern.WHITE_LIST, "a")
    assert Blacklist("a").pattern is Pattern.BLACK_LIST
    assert isinstance(Whitelist("a"), TopicFilter)
    with pytest.raises(AttributeError):
        Whitelist("a").regex = "b"  # type: ignore[misc]


def test_expand_static_keeps_topics_that_do_not_exist() -> None:
    """A static registration selects its topics. Names that no topic can have are left out."""
    static = Subscription(Pattern.STATIC, {"t1": 2, "nosuch": 1, "a b": 1, "a/b": 1, OFFSETS: 1})
    assert expand(PATH, static, ["t1"], True) == {"t1": 2, "nosuch": 1, OFFSETS: 1}


def test_expand_filters() -> None:
    """Filters select from the given list, with the reader's setting for internal topics."""
    topics = {"t1", "t2", "u1", OFFSETS, TRANSACTIONS, "bad name"}
    assert expand(PATH, white("t.*", 2), topics, True) == {"t1": 2, "t2": 2}
    assert expand(PATH, black("t.*", 3), topics, True) == {"u1": 3}
    assert set(expand(PATH, black("t.*"), topics, False)) == {"u1", OFFSETS, TRANSACTIONS}
    assert expand(PATH, white(".*"), [], True) == {}


def test_expand_cleans_the_stored_regex_again() -> None:
    """The text of another member is also cleaned when it is read, as JVM members do."""
    assert expand(PATH, white(' "t1, t2"'), ["t1", "t2", "t3"], True) == {"t1": 1, "t2": 1}


def test_expand_takes_a_double_escaped_regex_as_it_is() -> None:
    r"""Kafka 1.0.1 to 1.1 escapes ``a\.b`` twice. No member of the group claims a.b then."""
    assert expand(PATH, white(r"a\\.b"), ["a.b"], True) == {}


@pytest.mark.parametrize("regex", ["a{1,2}", "(", "(?#a)", "*\n\u202e"])
def test_expand_names_the_registration_with_a_bad_regex(regex: str) -> None:
    """A regex of another client that cannot be used is a format error of its registration, in plain
    ASCII."""
    with pytest.raises(ZnodeFormatError) as caught:
        expand(PATH, white(regex), ["t"], True)
    assert caught.value.path == PATH
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("regex", ["(a|aa)+$x", "((.*a){12})b", ".*a.*a.*a.*a.*a.*b"])
def test_catastrophic_patterns_are_decided(regex: str) -> None:
    """A pattern that would run for hours in a backtracking matcher takes milliseconds."""
    topics = ["a" * (150 + n % 90) + f".{n}" for n in range(500)]
    start = time.thread_time()
    assert expand(PATH, white(regex), [*topics, "a" * 20 + "b"], True).keys() <= {"a" * 20 + "b"}
    assert time.thread_time() - start < 1.0


LONG_WORK = "(" + "a?" * 1000 + "b)*"


def test_own_pattern_of_too_many_steps_is_a_config_error() -> None:
    """The error for a user's own pattern that takes too many steps names it."""
    with pytest.raises(ConfigError, match=r"a\?b\)\*' takes too long"):
        Whitelist(LONG_WORK).allows("aaab" * 50, True)


def test_a_pattern_of_too_many_steps_is_stopped() -> None:
    """The registration with such a pattern cannot be used. Its readers do not wait."""
    start = time.thread_time()
    with pytest.raises(ZnodeFormatError, match="too long"):
        expand(PATH, white(LONG_WORK), ["aaab" * 50, "b"], True)
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        (r"(a+)+(b)\2", "more than 1000 ways to match"),
        ("(?>(a|b)+)+", "more than 1000 ways to match"),
        ("(a++b*)*", "more than 1000 ways to match"),
        ("[ab]" * 3000, "more than 8192 characters"),
        ("".join(f"[{chr(97 + n // 26)}{chr(97 + n % 26)}]" for n in range(26**2)), "classes"),
    ],
)
def test_patterns_that_are_refused_unmatched(regex: str, reason: str) -> None:
    """All members refuse a pattern that cannot be matched in a limited number of steps."""
    with pytest.raises(ZnodeFormatError, match=reason):
        expand(PATH, white(regex), ["t"], True)


def test_lists_of_names() -> None:
    """A filter that lists names may be as long as a registration. Its dots match any character."""
    names = [f"orders.region-{n}" for n in range(2000)]
    listed = "|".join(
        [*names[:900], *(n.replace(".", r"\.") for n in names[900:1000]), "u[.]v", "w.x"]
    )
    topics = [*names, "orders-region-7", "orders-region-950", "u.v", "u-v", "w-x", "w"]
    assert set(expand(PATH, white(listed), topics, True)) == {
        *names[:1000],
        "orders-region-7",
        "u.v",
        "w-x",
    }


def test_ordinary_filters_over_many_topics_are_not_stopped() -> None:
    """10,000 topics are not a reason to refuse an ordinary pattern."""
    topics = [f"team.topic-{n}" for n in range(10_000)]
    assert len(expand(PATH, white(r"team[.](topic|queue)-\d*5"), topics, True)) == 1000
