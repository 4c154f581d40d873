"""Reads and writes the files of a byte-pair vocabulary, in the formats of GPT-2 and Hugging Face.

    vocab.json       {"!": 0, ..., "Ġthe": 262, ..., "<|endoftext|>": 50256}
    merges.txt       #version: 0.2              a comment
                     Ġ t                        the first pair that joins: a space and a t
                     h e
    tokenizer.json   ids and pairs in one file, with special tokens and the pattern that cuts words

A token is a sequence of bytes, but JSON holds characters. So the files write each byte as a
printable character. A byte that is a printable Latin-1 character is written as this character. The
other 68 bytes are written as the characters from 256 on, in order. A space, byte 32, is written as
"Ġ", which is character 256 + 32.

A file may come from an unknown author, or may be incomplete. A wrong table also encodes every
text, but into ids that the model was not trained on. So the reader checks everything first:

    each byte has a token; both tokens of a pair and the joined token exist; no pair comes twice
    the ids are 0, 1, 2, ..., each once
    each token is a byte, a special token, or the result of a pair

An error tells the file, the position in the file, and what is wanted at this position.

Source: Radford et al. 2019 (GPT-2).   Test: tests/data/test_vocabulary_files.py
Used by: byte_pairs.py
"""

import json

from minidl.data.words import GPT2, LLAMA3

END_OF_TEXT = "<|endoftext|>"
MOST_BYTES = 1 << 28  # the largest file. Llama 3's tokenizer.json has 9 million bytes
MOST_IDS = 1 << 31


def byte_characters():
    """Returns the 256 characters that stand for the bytes 0 to 255."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1),
              *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in itself)
    characters = {byte: chr(byte) for byte in itself}
    characters |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


CHARACTERS = byte_characters()
BYTE_OF = {character: byte for byte, character in enumerate(CHARACTERS)}


def spell(token):
    """Returns the characters that stand for a token's bytes."""
    return "".join(CHARACTERS[byte] for byte in token)


# -- GPT-2's two files

def read_two(vocab_path, merges_path, special_names=None):
    """Returns (vocab, merges, special tokens), in the form that Tokenizer takes. special_names: the
    special tokens in vocab.json. The default is <|endoftext|>, if vocab.json has it."""
    ids = _ids(_json_of(vocab_path), vocab_path)
    if special_names is None:
        special_names = [END_OF_TEXT] if END_OF_TEXT in ids else []
    for name in special_names:
        if name not in ids:
            raise ValueError(f"{vocab_path} has no special token {name!r}. Add this entry to the "
                             "file, or leave the name out of special_tokens")
    special = {name: ids.pop(name) for name in special_names}
    return *_checked(ids, special, vocab_path, _lines_of(merges_path), merges_path), special


def write_two(folder, vocab, merges, special):
    """Writes vocab.json and merges.txt into a folder. Makes the folder if it is missing. Raises
    ValueError if a special token is spelled like an ordinary token."""
    ids = {spell(token): i for i, token in vocab.items()}
    if taken := special.keys() & ids.keys():
        raise ValueError(f"{folder}: {min(taken)!r} is a special token and also an ordinary "
                         "token, but vocab.json can hold only one of these two. Give the special "
                         "token another name")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(ids | special, ensure_ascii=False)
    (folder / "vocab.json").write_text(text, "utf-8")
    lines = [f"{spell(left)} {spell(right)}\n" for left, right in merges]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(lines), "utf-8", newline="\n")


def _lines_of(path):
    """Returns a list with one entry (place, tokens) for each line of merges.txt that has a pair of
    tokens. place: a text such as "line 3". tokens: a list of the tokens in the line."""
    lines = _text_of(path).split("\n")  # splitlines() also cuts at other characters
    while lines and not lines[-1].strip():
        lines.pop()
    first = 1 if lines and lines[0].startswith("#version") else 0
    return [(f"line {n + 1}", line.removesuffix("\r").split(" "))
            for n, line in enumerate(lines) if n >= first]


# -- Hugging Face's file

def read_folder(folder):
    """Returns the arguments of Tokenizer, read from a model's folder. Reads tokenizer.json. If this
    file is missing, reads vocab.json and merges.txt. Raises ValueError if these files are missing,
    too."""
    path = folder / "tokenizer.json"
    if path.exists():
        return read_one(path)
    if not (folder / "vocab.json").exists():
        raise ValueError(f"{folder} has no tokenizer.json and no vocab.json; want a folder that "
                         "tokenizer.save_pretrained() of the package transformers has written")
    return read_two(folder / "vocab.json", folder / "merges.txt")


def read_one(path):
    """Returns (vocab, merges, special tokens, pattern, whole words) from a tokenizer.json."""
    found = _json_of(path)
    model = found.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ValueError(f"{path}: model is {_short(model)}; want a model of type BPE")
    for where, part, name, wanted in (
            ("", found, "normalizer", None), ("model.", model, "dropout", None),
            ("model.", model, "byte_fallback", False),
            ("model.", model, "continuing_subword_prefix", None),
            ("model.", model, "end_of_word_suffix", None)):
        if part.get(name):
            raise ValueError(f"{path}: {where}{name} is {_short(part[name])}; want "
                             f"{json.dumps(wanted)}, because minidl does not have this feature")
    pattern = _pattern(found.get("pre_tokenizer"), path)
    special = _special(found.get("added_tokens") or [], path)
    ids = _ids(model.get("vocab"), path)
    for name, i in special.items():
        if ids.pop(name, i) != i:
            raise ValueError(f"{path}: special token {name!r} has one id in added_tokens, and "
                             "another id in model.vocab; want the same id")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise ValueError(f"{path}: model.merges is {_short(merges)}; want a list of pairs")
    whole_words = model.get("ignore_merges") is True
    pairs = [(f"model.merges[{n}]", pair.split(" ") if isinstance(pair, str) else pair)
             for n, pair in enumerate(merges)]
    return *_checked(ids, special, path, pairs, path, whole_words), special, pattern, whole_words


def _pattern(cutter, path):
    """Returns the pattern of a pre_tokenizer. Two forms are allowed. One form is ByteLevel. The
    other form is a Split by the pattern of GPT-2 or Llama 3, and after it ByteLevel. Raises
    ValueError for another form."""
    steps = cutter.get("pretokenizers", [cutter]) if isinstance(cutter, dict) else []
    steps = steps if isinstance(steps, list) else []
    steps = [step if isinstance(step, dict) else {} for step in steps]
    kinds = [step.get("type") for step in steps]
    if kinds and steps[-1].get("add_prefix_space") is False:
        with_regex = steps[-1].get("use_regex", True)
        if kinds == ["ByteLevel"] and with_regex is True:
            return GPT2
        if kinds == ["Split", "ByteLevel"] and with_regex is False:
            split = steps[0]
            like_findall = split.get("behavior") == "Isolated" and not split.get("invert")
            for pattern in GPT2, LLAMA3:  # another pattern may need exponential time
                if split.get("pattern") == {"Regex": pattern} and like_findall:
                    return pattern
    raise ValueError(f"{path}: pre_tokenizer is {_short(cutter)}; want ByteLevel with "
                     "add_prefix_space false, or a Split by the pattern of GPT-2 or Llama 3, "
                     "followed by such a ByteLevel. minidl cuts words only in these ways")


def _special(added, path):
    """Returns {name: id} of the added tokens."""
    special = {}
    for n, token in enumerate(added if isinstance(added, list) else [None]):
        name, i = (token.get("content"), token.get("id")) if isinstance(token, dict) else (0, 0)
        if not isinstance(name, str) or not name or not _is_id(i):
            raise ValueError(f"{path}: added_tokens[{n}] is {_short(token)}; want an object with "
                             "the keys 'content' (a name) and 'id' (a whole number from 0 on)")
        unlike = [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]
        if token.get("special") is not True or unlike:
            raise ValueError(f"{path}: added_tokens[{n}], {name!r}, "
                             f"{'has ' + unlike[0] + ' = true' if unlike else 'is not special'}; "
                             "want only special tokens whose lstrip, rstrip and single_word are "
                             "false")
        if name in special or i in special.values():
            raise ValueError(f"{path}: added_tokens[{n}], {name!r} with id {i}, comes a second "
                             "time; want each name and id once")
        special[name] = i
    for name in special:
        _utf8(name, path)
    return special


# -- for both formats

def _checked(ids, special, vocab_path, pairs, merges_path, whole_words=False):
    """Checks a vocabulary. Returns (vocab, merges) for Tokenizer: {id: bytes} and [(bytes, bytes)].

    ids:   {characters: id}.
    pairs: [(place in the file, [left characters, right characters])]."""
    there = {*ids.values(), *special.values()}
    if len(there) < len(ids) + len(special) or max(there) >= len(there):
        missing = next(i for i in range(len(there) + 1) if i not in there)
        raise ValueError(f"{vocab_path}: none of the {len(ids) + len(special)} tokens has the id "
                         f"{missing}; want each id from 0 to {len(ids) + len(special) - 1} once")
    tokens = {name: _spelled(name, vocab_path) for name in ids}
    for byte, character in enumerate(CHARACTERS):
        if character not in ids:
            raise ValueError(f"{vocab_path} has no token {character!r} for byte {byte}; want "
                             "all 256 bytes, so that every text can be written")
    merges, seen = [], {}
    for place, pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(
                isinstance(part, str) and part for part in pair):
            raise ValueError(f"{merges_path}: {place} is {_short(pair)}; want two tokens with one "
                             "space between them")
        left, right = pair
        for name in left, right, left + right:
            if name not in tokens:
                raise ValueError(f"{merges_path}: {place} joins {_short(left)} and {_short(right)},"
                                 f" but {vocab_path.name} has no token {_short(name)}. One of the "
                                 "files is damaged, or the files belong to different models")
        if (before := seen.setdefault((left, right), place)) is not place:
            raise ValueError(f"{merges_path}: {place} joins {_short(left)} and {_short(right)}, "
                             f"but {before} joins them, too; want each pair once")
        merges.append((tokens[left], tokens[right]))
    made = {left + right for left, right in seen}
    for name, token in tokens.items():
        if len(token) > 1 and name not in made and not whole_words:
            raise ValueError(f"{merges_path}: no pair makes {_short(name)}, token {ids[name]} of "
                             f"{vocab_path.name}. If it is a special token, name it in "
                             f"special_tokens. If not, {merges_path.name} is incomplete")
    return {ids[name]: token for name, token in tokens.items()}, merges


def _ids(found, path):
    """Returns {characters: id} from a JSON object. Checks that the ids are different numbers."""
    if not isinstance(found, dict):
        raise ValueError(f"{path}: the vocabulary is {_short(found)}; want an object that has an "
                         "id for each token")
    names = {}
    for name, i in found.items():
        if not _is_id(i):
            raise ValueError(f"{path}: token {_short(name)} has the id {_short(i)}; want a whole "
                             "number from 0 on")
        if (other := names.setdefault(i, name)) is not name:
            raise ValueError(f"{path}: tokens {_short(other)} and {_short(name)} both have the id "
                             f"{i}; want a different id for each token")
    return dict(found)


def _is_id(i):
    return type(i) is int and 0 <= i < MOST_IDS


def _spelled(name, path):
    """Returns the bytes of a token. name: the characters that stand for these bytes."""
    try:
        return bytes([BYTE_OF[character] for character in name])
    except KeyError as error:
        raise ValueError(f"{path}: token {_short(name)} has the character {error.args[0]!a}, which "
                         "stands for no byte. If the token is special, name it in special_tokens"
                         ) from None


def _utf8(name, path):
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path}: special token {name!a} contains half of a surrogate pair; want "
                         "text that UTF-8 can encode") from None


def _text_of(path):
    """Returns the text of a file."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe might never end
            raise OSError("it is not an ordinary file")
        if path.stat().st_size > MOST_BYTES:
            raise OSError(f"it has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
        return path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error}); want a tokenizer's "
                         "file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; want a text file in UTF-8"
                         ) from None


def _json_of(path):
    """Returns the object in a JSON file."""
    text = _text_of(path)
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"it has {_short(found)}; want an object")
    except RecursionError:
        raise ValueError(f"{path}: the JSON is nested too deeply; want a tokenizer's file"
                         ) from None
    except ValueError as error:  # JSONDecodeError names the line and the column
        raise ValueError(f"{path}: not a tokenizer's JSON ({error}); want a complete file"
                         ) from None
    return found


def _short(value):
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
