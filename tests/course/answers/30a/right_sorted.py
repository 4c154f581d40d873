# right: all pairs sorted, the words by a function
def join(word):
    if len(word) < 2:
        return word
    if word[:2] == pair:
        return (token, *join(word[2:]))
    return (word[0], *join(word[1:]))


counts = Counter()
for word, n in words.items():
    counts.update({p: n * k for p, k in Counter(zip(word, word[1:])).items()})
order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
if not order or order[0][1] == 1:
    return None, dict(words)
pair = order[0][0]
return pair, {join(word): n for word, n in words.items()}
