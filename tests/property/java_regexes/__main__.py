"""Print random regexes with Java's verdicts: ``SEED COUNT``."""

import random
import sys

from tests.property.java_regexes import random_regex, verdicts_of_java

seed, count = map(int, sys.argv[1:])
generator = random.Random(seed)
regexes = [random_regex(generator) for _ in range(count)]
verdicts = verdicts_of_java(regexes)
sys.stdout.writelines(
    f"{regex} {verdict}\n" for regex, verdict in zip(regexes, verdicts, strict=True)
)
