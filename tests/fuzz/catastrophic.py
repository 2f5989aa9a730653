"""Fifty regexes that take a backtracking matcher hours, or a lot of memory. None matches a topic.

Each ends with an ``@`` or requires one, and topic names contain none.
"""

from __future__ import annotations

from typing import Final

_REPEATED: Final = (
    "(a+)+",
    "(a*)*",
    "(a|a)*",
    "(a|aa)+",
    "(a|a?)+",
    "([a-z]+)*",
    "([a-z0-9-]+)+",
    "(.*)*",
    "(.+)+",
    "(.*)+",
    "(.*.*)*",
    "((.*)*)*",
    "(((.+)+)+)+",
    "((a+)+)+",
    "(.*a){12}",
    "(.*-){8}",
    ".*.*.*.*.*.*.*.*",
    ".*a.*a.*a.*a.*a.*",
    "(.|.|.)*",
    "(?:.?){80}",
    "(.?){60}.{60}",
    "(\\w+\\W?)*",
    "(\\w|[a-z])*",
    "([^@]+)*",
    "(?i)(a+|A+)+",
    "(?:(?:a|b|-)*(?:a|b|-)*)*",
    "(x+x+)+y*",
    "(a?){30}a{30}",
    "(?=(.*)*)(.*)*",
    "(?!(.+)+@)(.+)+",
    "(?<=(.*)*)(.*)*",
    "(\\d*\\d*)*\\D*",
    "(t.*)+",
    "(.*t.*)+",
    "(t|te|tes|test|.)*",
    "([a-z]|[a-y]|[a-x]|[b-z])*",
)
CATASTROPHIC: Final = (
    *(f"{part}@" for part in _REPEATED),
    "(.*)*\\1@",
    "(.+)+(.+)+\\2@",
    "(?>(.*)*)@",
    "(?>a|b|.)*(.*)@",
    "(.*+.*)*@",
    "((((.{99}){99}){99}){99})@",
    "(.{999}){999}@",
    "(" * 90 + "." + ")*" * 90 + "@",
    "(" * 5000 + ")" * 5000 + "@",
    "[" * 5000 + "@",
    "(.?){9999}@",
    "|".join(f"({letter}+)+@" for letter in "abcdefghijklmnopqrstuvwxyz" * 40),
    "[a-z&&[^b]]" * 700 + "@",
    "(?=.*)" * 1300 + "@",
)
