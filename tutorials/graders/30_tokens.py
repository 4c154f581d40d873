"""Grades work/30_tokens.py.   Test: tests/tutorials/test_exercises.py"""

import random
from collections import Counter

import numpy as np

from minidl.course.grade import Wrong, kind_of
from minidl.plain import tokens as plain

SEED = 0  # `minidl check --student NAME` sets another one for each student

# -- 30a

# (name, {word: its count}, the next new token)
BY_HAND = [
    ("one word, twice", {b"banana band": 2}, 256),
    ("a word that occurs five times", {b"xy": 5, b"abc": 1, b"abd": 1, b"abe": 1}, 256),
    ("three pairs that occur equally often", {b"zz": 1, b"my": 3, b"zy": 3, b"by": 3}, 256),
    ("equally often, a new token in one of them", {(256, 97): 2, (97, 98): 2}, 257),
    ("a run of equal bytes", {b"aaa": 1, b"aaaaa": 1, b"xyz": 5}, 256),
    ("words that end and begin alike", {b"ab": 1, b"ba": 1, b"cb": 2}, 256),
    ("no pair twice", {b"abc": 1, b"def": 1}, 256),
    ("words of one byte, and none", {b"a": 9, b"": 2}, 256),
    ("no words", {}, 256),
]


def drawn(n_words, n_letters):
    """Returns {word: its count} of random words."""
    draw = random.Random(SEED + n_words)
    words = {}
    for _ in range(n_words):
        word = bytes(draw.choices(range(97, 97 + n_letters), k=draw.randint(1, 9)))
        words[word] = draw.randint(1, 6)
    return words


CASES = [*BY_HAND, ("30 words of 2 letters", (30, 2), 256), ("80 words of 5 letters", (80, 5), 300)]


def given(case):
    words = CASES[case][1]
    words = drawn(*words) if isinstance(words, tuple) else words
    return {tuple(word): n for word, n in words.items()}


def stepped(module, case):
    """Returns (pair, [[word, count]], True if the dict was not changed, text).

    text: the kind of an answer that has a wrong form, or ""."""
    words = given(case)
    before = dict(words)
    got = module.merge_step(words, CASES[case][2])
    same = words == before
    if not isinstance(got, tuple) or len(got) != 2 or not isinstance(got[1], dict):
        return None, None, same, kind_of(got)
    pair, after = got
    if not all(isinstance(word, tuple) for word in after):
        return None, None, same, "words that are no tuples"
    if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2 and whole(*pair)):
        return None, None, same, f"a pair that is {pair!r:.40}"
    if not all(whole(*word, n) for word, n in after.items()):
        return None, None, same, "words or counts that are no whole numbers"
    kept = [[[int(i) for i in word], int(n)] for word, n in after.items()]
    return None if pair is None else [int(i) for i in pair], kept, same, ""


def whole(*numbers):
    return all(hasattr(i, "__index__") and np.ndim(i) == 0 for i in numbers)


def counted(words, weigh=True, overlapping=True):
    """Returns a Counter of the pairs. An option that is False makes a mistake."""
    counts = Counter()
    for word, n in words.items():
        before = None
        for i, pair in enumerate(zip(word, word[1:])):
            if not overlapping and before == (i - 1, pair):
                before = None
                continue
            counts[pair] += n if weigh else 1
            before = i, pair
    return counts


def best(counts):
    return min(counts, key=lambda pair: (-counts[pair], pair), default=None)


def grade_30a(student):
    """merge_step: the most frequent pair of all words, joined from the left."""
    for case, (what, _, token) in enumerate(CASES):
        words = given(case)
        pair, after, same, unlike = student.run(stepped, case)
        if unlike:
            raise Wrong(f"{what}: wanted (pair, dict), the pair a tuple of two tokens or None, "
                        f"each word a tuple; got {unlike}")
        if not same:
            raise Wrong(f"{what}: the given dict was changed. It belongs to the caller: make a new "
                        "one")
        counts = counted(words)
        wanted = best(counts)
        if counts[wanted] < 2:
            wanted = None
        _check_pair(what, words, counts, pair and tuple(pair), wanted)
        _check_words(what, words, wanted, token, {tuple(word): n for word, n in after})
        yield f"{what}: {'no pair' if wanted is None else f'the pair {wanted}'}"


def _check_pair(what, words, counts, pair, wanted):
    if pair == wanted:
        return
    if wanted is None:
        raise Wrong(f"{what}: no pair occurs twice, so wanted (None, words); got the pair {pair}. "
                    "A pair that occurs once makes no other text shorter")
    if pair is None:
        raise Wrong(f"{what}: the pair {wanted} occurs {counts[wanted]} times; got None")
    first = max(counts, key=counts.get)
    many = [other for other in counts if counts[other] == counts[wanted]]
    across = counted({tuple(i for word, n in words.items() for i in word * n): 1})
    hint = ""
    if pair in many and pair == max(many):
        hint = ". If pairs are equally frequent, take the smallest; this is the largest"
    elif pair in many:
        hint = (". If pairs are equally frequent, take the smallest, not the first that was seen"
                if pair == first else ". If pairs are equally frequent, take the smallest")
    elif pair == best(counted(words, weigh=False)):
        hint = ". A word that occurs n times has each of its pairs n times"
    elif pair == best(counted(words, overlapping=False)):
        hint = ". In a a a the pair a a occurs twice: pairs may overlap when you count them"
    elif pair not in counts:
        hint = ". No word has it: a pair never reaches over two words"
    elif pair == best(across):
        hint = ". It counts pairs that reach over two words"
    elif counts[pair] == min(counts.values()):
        hint = ". This is the rarest pair; wanted the most frequent"
    raise Wrong(f"{what}: wanted the pair {wanted}, which occurs {counts[wanted]} times; got "
                f"{pair}, which occurs {counts[pair]} times{hint}")


def from_right(word, pair, token):
    """Returns the word with the pair joined from its end."""
    turned = plain.join(list(word[::-1]), pair[::-1], token)
    return tuple(turned[::-1])


def one_on(word, pair, token):
    """Returns the word with `token` where the pair begins. The pair's second token stays."""
    return tuple(token if word[i:i + 2] == pair else word[i] for i in range(len(word)))


def once(word, pair, token):
    """Returns the word in which only the first such pair is joined."""
    for i in range(len(word) - 1):
        if word[i:i + 2] == pair:
            return *word[:i], token, *word[i + 2:]
    return word


def _check_words(what, words, pair, token, after):
    wanted = {tuple(plain.join(list(word), pair, token)): n for word, n in words.items()}
    if after == wanted:
        return
    if after == words:
        raise Wrong(f"{what}: the words are as before; wanted {token} for each {pair} in them")
    right = {from_right(word, pair, token): n for word, n in words.items()}
    first = {once(word, pair, token): n for word, n in words.items()}
    if after == right:
        raise Wrong(f"{what}: joined from the right: a a a becomes token a, and not a token. Begin "
                    "at the left")
    if after == first:
        raise Wrong(f"{what}: only the first {pair} of each word was joined; wanted all of them")
    if set(after) == set(wanted):
        word = next(word for word in wanted if after[word] != wanted[word])
        raise Wrong(f"{what}: the word {word} occurs {wanted[word]} times, as before; got "
                    f"{after[word]}: a word keeps its count")
    if missing := [word for word in wanted if word in words and word not in after]:
        raise Wrong(f"{what}: the word {missing[0]} is missing: words without the pair stay")
    twice = {one_on(word, pair, token): n for word, n in words.items()}
    hint = ""
    if after == twice:
        hint = ". A token that has been joined is not part of the next pair: continue after it"
    for word in words:
        new = tuple(plain.join(list(word), pair, token))
        if new not in after:
            raise Wrong(f"{what}: the word {word} with {token} for {pair} is {new}, which is "
                        f"missing; got {sorted(after)[:3]}{hint}")
    raise Wrong(f"{what}: got {len(after)} words, wanted {len(wanted)}: return only the words")


# -- 30b

# (name, pairs as texts, in the order in which they were learned; words to encode)
TABLES = [
    ("b c before a b", ["bc", "ab", "cd", "ab|c", "d|ab", "da"],
     [b"abc", b"bcd", b"dab", b"abab", b"bcbc", b"", b"x"]),
    ("a pair of new tokens", ["ab", "cd", "ab|cd", "x|abcd"],
     [b"abcd", b"xabcdx", b"abab", b"cdab"]),
    ("runs", ["aa", "aa|aa"], [b"aaa", b"aaaaaaa", b"baaab", b"aaaa"]),
    ("a short token that is made late", ["th", "in", "he", "th|e", "in|g"],
     [b"thing", b"the", b"hethe", b"inthein"]),
    ("from the middle", ["cd", "bc", "ab", "ab|cd"], [b"abcd", b"abcdabc", b"bcd", b"ababcdcd"]),
]


def ranks_of(pairs):
    """Returns {(left, right): rank} for pairs that are written as texts. "ab|cd" joins the tokens
    of ab and cd."""
    ids = {chr(i): i for i in range(256)}
    ranks = {}
    for rank, both in enumerate(pairs):
        left, _, right = both.partition("|") if "|" in both else (both[0], "", both[1])
        ranks[ids[left], ids[right]] = rank
        ids[left + right] = 256 + rank
    return ranks


def learned():
    """Returns (a table that was learned, words). Each student gets another table and other
    words."""
    words = drawn(60, 3)
    pairs = plain.learn(b"\n".join(words), 25)
    return {pair: rank for rank, pair in enumerate(pairs)}, [*words][:40]


LEARNED = len(TABLES)


def table_of(case):
    if case == LEARNED:
        return learned()
    _, pairs, words = TABLES[case]
    return ranks_of(pairs), words


def encoded(module, case):
    """Returns (tokens of each word, True if the table was not changed, text).

    text: the kind of an answer that is no list of whole numbers, or ""."""
    ranks, words = table_of(case)
    before, found = dict(ranks), []
    for word in words:
        ids = module.encode_word(word, ranks)
        if not isinstance(ids, list) or not whole(*ids):
            return [], True, kind_of(ids)
        found.append([int(i) for i in ids])
    return found, ranks == before, ""


def by_rule(word, ranks, choose, name=lambda rank: 256 + rank, n_joins=99):
    """Returns the tokens of a word by another rule: each time `choose` picks the pair to join from
    a list of (rank, position)."""
    ids = list(word)
    for _ in range(n_joins):
        places = [(ranks[pair], i) for i, pair in enumerate(zip(ids, ids[1:])) if pair in ranks]
        if not places:
            break
        rank, i = choose(places)
        ids[i:i + 2] = [name(rank)]
    return ids


def longest(word, ranks):
    """Returns the tokens if the longest token is taken each time, from the left."""
    spelled = [bytes([i]) for i in range(256)]
    for left, right in ranks:
        spelled.append(spelled[left] + spelled[right])
    ids, i = [], 0
    while i < len(word):
        token = max((t for t, text in enumerate(spelled) if word.startswith(text, i)),
                    key=lambda t: len(spelled[t]))
        ids.append(token)
        i += len(spelled[token])
    return ids


def one_pass(word, ranks):
    """Returns the tokens if only pairs of bytes are joined, and no pairs of tokens."""
    few = {pair: rank for pair, rank in ranks.items() if max(pair) < 256}
    return by_rule(word, few, min)


def the_left(places):
    return min(places, key=lambda place: place[1])


def the_highest(places):
    return max(places, key=lambda place: (place[0], -place[1]))


def the_right_of_equals(places):
    return min(places, key=lambda place: (place[0], -place[1]))


MISTAKES = [
    ("This joins the leftmost pair with a rank. Join the pair of the lowest rank in the whole word",
     lambda word, ranks: by_rule(word, ranks, the_left)),
    ("This joins the pair of the highest rank. The pair of the lowest rank was learned first",
     lambda word, ranks: by_rule(word, ranks, the_highest)),
    ("If pairs are equal, join the left one first. This joins the right one",
     lambda word, ranks: by_rule(word, ranks, the_right_of_equals)),
    ("From the left, the longest token was taken. Tokens are made by joining pairs, in the order "
     "of their ranks", longest),
    ("The pair of rank r is token 256 + r: the first 256 tokens are the bytes",
     lambda word, ranks: by_rule(word, ranks, min, lambda rank: rank)),
    ("The pair of rank r is token 256 + r, and the ranks begin with 0",
     lambda word, ranks: by_rule(word, ranks, min, lambda rank: 257 + rank)),
    ("A new token makes new pairs, which may have a rank, too: look again", one_pass),
    ("Nothing is joined", lambda word, ranks: list(word)),
    ("It stops after one pair. Look again, until no pair has a rank",
     lambda word, ranks: by_rule(word, ranks, min, n_joins=1)),
]


def grade_30b(student):
    """encode_word: the pair of the lowest rank joins first."""
    for case in range(LEARNED + 1):
        ranks, words = table_of(case)
        what = TABLES[case][0] if case < LEARNED else "a table of 25 learned pairs"
        got, same, unlike = student.run(encoded, case)
        if unlike:
            raise Wrong(f"{what}: wanted a list of tokens, whole numbers; got {unlike}")
        if not same:
            raise Wrong(f"{what}: the table of ranks was changed; it belongs to the caller")
        wanted = [plain.encode(word, [*ranks]) for word in words]
        for word, ids, right in zip(words, got, wanted, strict=True):
            if ids == right:
                continue
            hint = ""
            for reason, way in MISTAKES:
                if all(a == way(w, ranks) for w, a in zip(words, got, strict=True)):
                    hint = f". {reason}"
                    break
            spelled = [bytes([i]) for i in range(256)]
            for left, second in ranks:
                spelled.append(spelled[left] + spelled[second])
            inside = all(0 <= i < len(spelled) for i in ids)
            if not hint and inside and b"".join(spelled[i] for i in ids) != word:
                hint = ". These tokens do not spell the word"
            raise Wrong(f"{what}: {word!r} is {right}, got {ids}{hint}")
        yield f"{what}: {len(words)} words"


# {exercise: {name of the mistake: (the code of the region, words that its message must have)}}
WRONG = {
    "30a": {
        "each word counts once": ({"counts[pair] += n": "counts[pair] += 1"},
                                  "has each of its pairs n times"),
        "the largest of equal pairs": (
            {"min(counts, key=lambda pair: (-counts[pair], pair), default=None)":
             "max(counts, key=lambda pair: (counts[pair], pair), default=None)"},
            "this is the largest"),
        "the first of equal pairs": (
            {"min(counts, key=lambda pair: (-counts[pair], pair), default=None)":
             "max(counts, key=counts.get, default=None)"},
            "not the first that was seen"),
        "the rarest pair": (
            {"(-counts[pair], pair)": "(counts[pair], pair)"}, "This is the rarest"),
        "a pair that occurs once": (
            {"counts[pair] < 2": "pair is None"}, "so wanted (None, words)"),
        "pairs that overlap count once": (
            {"    for pair in zip(word, word[1:]):\n        counts[pair] += n\n": """
    i = 0
    while i + 1 < len(word):
        counts[word[i:i + 2]] += n
        i += 2 if word[i:i + 2] == word[i + 1:i + 3] else 1
"""}, "pairs may overlap when you count them"),
        "joined from the right": (
            """
counts = Counter()
for word, n in words.items():
    for pair in zip(word, word[1:]):
        counts[pair] += n
pair = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
if counts[pair] < 2:
    return None, words
joined = {}
for word, n in words.items():
    new, i = [], len(word)
    while i > 0:
        if i > 1 and word[i - 2:i] == pair:
            new.append(token)
            i -= 2
        else:
            new.append(word[i - 1])
            i -= 1
    joined[tuple(new[::-1])] = n
return pair, joined
""", "joined from the right"),
        "the first pair of a word alone": (
            {"if word[i:i + 2] == pair:": "if word[i:i + 2] == pair and token not in new:"},
            "only the first"),
        "counts are lost": ({"joined[tuple(new)] = n": "joined[tuple(new)] = 1"},
                            "a word keeps its count"),
        "a token joins twice": (
            {"        i += 2\n": "        i += 1\n"}, "continue after it"),
        "the given dict is changed": (
            {"joined = {}\nfor word, n in words.items():": "joined = words\n"
             "for word, n in list(words.items()):\n    del words[word]"},
            "the given dict was changed"),
    },
    "30b": {
        "from the left": ({"min(places)": "min(places, key=lambda place: place[1])"},
                          "This joins the leftmost pair with a rank"),
        "the highest rank": (
            {"min(places)": "max(places, key=lambda place: (place[0], -place[1]))"},
            "This joins the pair of the highest rank"),
        "the right one of equal pairs": (
            {"min(places)": "min(places, key=lambda place: (place[0], -place[1]))"},
            "This joins the right one"),
        "the rank as the token": ({"[256 + rank]": "[rank]"}, "the first 256 tokens are the bytes"),
        "ranks from 1": ({"[256 + rank]": "[257 + rank]"}, "the ranks begin with 0"),
        "one pair alone": ({"ids[i:i + 2] = [256 + rank]": "ids[i:i + 2] = [256 + rank]\n"
                            "    return ids"}, "It stops after one pair"),
        "pairs of bytes alone": (
            {"if pair in ranks]": "if pair in ranks and max(pair) < 256]"},
            "A new token makes new pairs"),
        "the longest token": (
            """
spelled = [bytes([i]) for i in range(256)]
for left, right in ranks:
    spelled.append(spelled[left] + spelled[right])
ids, i = [], 0
while i < len(word):
    found = [t for t, text in enumerate(spelled) if word.startswith(text, i)]
    ids.append(max(found, key=lambda t: len(spelled[t])))
    i += len(spelled[ids[-1]])
return ids
""", "the longest token was taken"),
        "a byte is dropped": ({"ids[i:i + 2] = [256 + rank]": "ids[i:i + 3] = [256 + rank]"},
                              "do not spell the word"),
    },
}
