# right: a flag says that the token before has been joined
counts = {}
for word, n in words.items():
    for i in range(len(word) - 1):
        counts[word[i:i + 2]] = counts.get(word[i:i + 2], 0) + n
if not counts or max(counts.values()) < 2:
    return None, words
most = max(counts.values())
pair = min(p for p in counts if counts[p] == most)
made = {}
for word, n in words.items():
    ids, skip = [], False
    for i, one in enumerate(word):
        if skip:
            skip = False
        elif (one, *word[i + 1:i + 2]) == pair:
            ids.append(token)
            skip = True
        else:
            ids.append(one)
    made[tuple(ids)] = n
return pair, made
