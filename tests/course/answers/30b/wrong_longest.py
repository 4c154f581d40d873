# wrong: the longest token that the word begins with
text = {256 + rank: pair for pair, rank in ranks.items()}


def spell(token):
    if token < 256:
        return bytes([token])
    return spell(text[token][0]) + spell(text[token][1])


ids = []
while word:
    token = max((t for t in [word[0], *text] if word.startswith(spell(t))),
                key=lambda t: len(spell(t)))
    ids.append(token)
    word = word[len(spell(token)):]
return ids
